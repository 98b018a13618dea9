"""Builds one self-contained HTML page from sections. Knows neither runs nor files."""

import functools
import json
from collections.abc import Sequence
from html import escape
from importlib import resources

from sbpipe.show.charts import Chart, javascript, theme
from sbpipe.show.report.section import Section
from sbpipe.show.report.table import Table

MARK = '<meta name="generator" content="sbpipe report">'
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src "
    "data: blob:"
)
"""The browser refuses anything from outside; `unsafe-eval` because Vega compiles its expressions."""
WIDE_COLUMNS = 4


def html_page(
    title: str, lead: str, sections: Sequence[Section], figures: str | None, footer: Sequence[str]
) -> str:
    """The whole page; `figures` is the folder, relative to the page, that holds each chart as PNG and SVG."""
    shown = [
        section for section in sections if section.charts or section.tables or section.tiles or section.notes
    ]
    themes = {shade: theme.config(shade) for shade in ("light", "dark")}
    end = "".join(f"<p>{escape(line)}</p>" for line in footer)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'{MARK}\n<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # Without it a browser asks for /favicon.ico, and the policy above makes that an error.
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>",
            f'<header>\n<h1>{escape(title)}</h1>\n<p class="quiet">{escape(lead)}</p>',
            f"{_contents(shown)}\n</header>\n<main>",
            *(_section(section, figures) for section in shown),
            f"</main>\n<footer>{end}</footer>",
            _data("themes", themes),
            f"<script>\n{_vega()}\n</script>\n<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n",
        ]
    )


def _contents(sections: Sequence[Section]) -> str:
    items = "".join(
        f'<li><a href="#{escape(section.name)}">{escape(section.title)}</a></li>'
        for section in sections
        if section.title
    )
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


def _section(section: Section, figures: str | None) -> str:
    # Folded charts have no files: a study folds one run of each arm, and their figures would be too many.
    folder = None if section.is_folded else figures
    charts = [_figure(chart, folder) for chart in section.charts]
    tables = "".join(_table(table) for table in section.tables)
    parts = [_verdict(section.verdict), _tiles(section.tiles), _notes(section.notes), *charts, tables]
    body = "\n".join(part for part in parts if part)
    name, title = escape(section.name), escape(section.title)
    if section.is_folded:
        return f'<section id="{name}">\n<details>\n<summary>{title}</summary>\n{body}\n</details>\n</section>'
    heading = f"<h2>{title}</h2>\n" if title else ""
    return f'<section id="{name}">\n{heading}{body}\n</section>'


def _verdict(lines: Sequence[tuple[str, str]]) -> str:
    headline = "".join(f"<p>{escape(words)}</p>" for label, words in lines if not label)
    items = "".join(f"<dt>{escape(label)}</dt><dd>{escape(words)}</dd>" for label, words in lines if label)
    return f'<div class="verdict">{headline}<dl>{items}</dl></div>' if lines else ""


def _tiles(tiles: Sequence[tuple[str, str]]) -> str:
    items = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
        for label, value in tiles
    )
    return f'<div class="tiles">{items}</div>' if items else ""


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in dict.fromkeys(notes))
    return f'<ul class="notes">{items}</ul>' if items else ""


def _figure(chart: Chart, figures: str | None) -> str:
    name, title, spec_id = escape(chart.name), escape(chart.title), f"spec-{escape(chart.name)}"
    forms = ("png", "svg") if figures and chart.spec else ()
    links = "".join(f'<a href="{escape(str(figures))}/{name}.{form}">{form.upper()}</a>' for form in forms)
    drawing = f'<div class="chart" data-spec="{spec_id}" role="img" aria-label="{title}"></div>'
    notes = "".join(f"<li>{escape(note)}</li>" for note in chart.notes)
    return "\n".join(
        [
            f'<figure id="{name}">',
            f'<div class="heading"><h3>{title}</h3><span class="links">{links}</span></div>',
            f'<p class="meaning">{escape(chart.meaning)}</p>',
            f"{drawing}\n{_data(spec_id, chart.spec)}" if chart.spec else "",
            f"<figcaption><ul>{notes}</ul></figcaption>" if notes else "",
            "</figure>",
        ]
    )


def _table(table: Table) -> str:
    header = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    kind = ' class="long"' if len(table.header) > WIDE_COLUMNS else ""
    return (
        f'<div class="scroll"><h3>{escape(table.title)}</h3>'
        f'<p class="meaning">{escape(table.as_sentences())}</p>'
        f"<table{kind}><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _data(name: str, content: object) -> str:
    """JSON inside the page."""
    # It holds text from a run's files: with `<` escaped, none of it can end the script.
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


@functools.cache
def _vega() -> str:
    """The drawing script; cached, because making it takes a second or two."""
    return javascript()


def _asset(name: str) -> str:
    return resources.files("sbpipe.show.report").joinpath("assets", name).read_text(encoding="utf-8")
