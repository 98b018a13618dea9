"""Charts as data: a Vega-Lite specification, its colours and its renderer. Knows neither runs nor pages."""

from sbpipe.show.charts.chart import Chart
from sbpipe.show.charts.render import javascript, png_of_svg, to_png, to_svg

__all__ = ["Chart", "javascript", "png_of_svg", "to_png", "to_svg"]
