"""From sections to one HTML page that needs nothing but itself. Knows neither runs nor where the page
goes.
"""

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
"""The browser itself refuses anything from outside; Vega compiles its expressions, which is what
`unsafe-eval` is for.
"""
WIDE_COLUMNS = 4


def html_page(title: str, lead: str, sections: Sequence[Section], figures: str | None, footer: str) -> str:
    """The whole page; `figures` is the folder, relative to the page, that holds each chart as PNG and SVG."""
    shown = [
        section for section in sections if section.charts or section.tables or section.tiles or section.notes
    ]
    themes = {shade: theme.config(shade) for shade in ("light", "dark")}
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'{MARK}\n<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>",
            f'<header>\n<h1>{escape(title)}</h1>\n<p class="quiet">{escape(lead)}</p>\n{_contents(shown)}\n</header>\n<main>',
            *(_section(section, figures) for section in shown),
            f"</main>\n<footer>{escape(footer)}</footer>",
            _data("themes", themes),
            f"<script>\n{_vega()}\n</script>\n<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n",
        ]
    )


def _contents(sections: Sequence[Section]) -> str:
    items = "".join(
        f'<li><a href="#{escape(section.name)}">{escape(section.title)}</a></li>' for section in sections
    )
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


def _section(section: Section, figures: str | None) -> str:
    body = "\n".join(
        [
            _tiles(section.tiles),
            _notes(section.notes),
            *(_figure(chart, None if section.is_folded else figures) for chart in section.charts),
            f'<div class="tables">{"".join(_table(table) for table in section.tables)}</div>'
            if section.tables
            else "",
        ]
    )
    name, title = escape(section.name), escape(section.title)
    if section.is_folded:
        return f'<section id="{name}">\n<details>\n<summary>{title}</summary>\n{body}\n</details>\n</section>'
    return f'<section id="{name}">\n<h2>{title}</h2>\n{body}\n</section>'


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
    name, spec_id = escape(chart.name), f"spec-{escape(chart.name)}"
    links = (
        "".join(f'<a href="{escape(figures)}/{name}.{form}">{form.upper()}</a>' for form in ("png", "svg"))
        if figures
        else ""
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in chart.notes)
    return (
        f'<figure id="{name}">\n<div class="heading"><h3>{escape(chart.title)}</h3><span class="links">{links}</span></div>\n'
        f'<p class="meaning">{escape(chart.meaning)}</p>\n'
        f'<div class="chart" data-spec="{spec_id}" role="img" aria-label="{escape(chart.title)}"></div>\n'
        f"{f'<figcaption><ul>{notes}</ul></figcaption>' if notes else ''}\n{_data(spec_id, chart.spec)}\n</figure>"
    )


def _table(table: Table) -> str:
    header = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    kind = ' class="long"' if len(table.header) > WIDE_COLUMNS else ""
    return (
        f'<div class="scroll"{" style=grid-column:1/-1" if kind else ""}><h3>{escape(table.title)}</h3>'
        f'<p class="meaning">{escape(table.meaning)}</p><table{kind}><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _data(name: str, content: object) -> str:
    """JSON inside the page; `<` is escaped so that no text in it can end the script."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


@functools.cache
def _vega() -> str:
    """Making the script takes a second or two, and it is always the same."""
    return javascript()


def _asset(name: str) -> str:
    return resources.files("sbpipe.show.report").joinpath("page", name).read_text(encoding="utf-8")
