"""`sbpipe report`: the page, the figures and the trace of runs and studies."""

import argparse
from pathlib import Path

from sbpipe.errors import ConfigError

HELP = "one page with the figures of a run, several runs, a sweep or a comparison"
DESCRIPTION = """\
Makes one HTML page that needs no network, its figures as PNG and SVG, and a trace
of each run.

  sbpipe report runs/demo                    runs/demo/report.html, figures/, trace.json
  sbpipe report runs/a runs/b --out ab.html  both on one page: ab.html, ab-figures/, ab-trace-a.json, ...
  sbpipe report sweeps/interval              the folder of a sweep or a comparison
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    what = "a run directory, or the folder of a sweep or comparison"
    where = "the page (report.html in PATH; with several, in this folder)"
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help=what)
    parser.add_argument("--out", type=Path, metavar="FILE", help=where)
    parser.add_argument("--no-figures", action="store_true", help="the page only, without PNG and SVG files")
    parser.add_argument("--open", action="store_true", help="show the page in a browser")


def run(args: argparse.Namespace) -> int:
    """Make the report and print where it is."""
    from sbpipe.runs.names.files import REPORT
    from sbpipe.show.report.build import build_report, figures_folder

    out = args.out or (args.paths[0] / REPORT if len(args.paths) == 1 else Path(REPORT))
    if out.suffix not in (".html", ".htm"):
        raise ConfigError(
            "--out",
            str(out),
            "a report is an HTML page",
            "Give it a name that ends in .html; figures are PNG and SVG beside it",
        )
    build_report(args.paths, out, figures=not args.no_figures)
    print(f"report:  {out}")
    prefix = "" if out.name == REPORT else f"{out.stem}-"
    # Searched for, because a run without spans has no trace.
    for trace in sorted(out.parent.glob(f"{prefix}trace*.json")):
        print(f"trace:   {trace}   (for ui.perfetto.dev)")
    if not args.no_figures:
        print(f"figures: {figures_folder(out)}")
    if args.open:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
    return 0
