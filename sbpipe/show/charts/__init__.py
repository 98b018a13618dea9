"""Charts as data: Vega-Lite specifications made by pure functions, and their one renderer. Knows neither runs
nor pages.
"""

from sbpipe.show.charts.chart import Chart
from sbpipe.show.charts.render import javascript, png_of_svg, to_png, to_svg

__all__ = ["Chart", "javascript", "png_of_svg", "to_png", "to_svg"]
