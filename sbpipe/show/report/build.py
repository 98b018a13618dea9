"""Reads runs and studies and writes their report: one page, a folder of figures, a trace of each run."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sbpipe.errors import RunDirError
from sbpipe.files import write_atomically
from sbpipe.runs import Run, Study, read_run, read_study
from sbpipe.runs.directory import CONFIG, SUMMARY, TRAINER_EVENTS, refuse_foreign_links
from sbpipe.runs.names.files import REPORT
from sbpipe.runs.study import PLAN
from sbpipe.show.charts import Chart, png_of_svg, to_svg
from sbpipe.show.report.facts import lead_of_run
from sbpipe.show.report.many import charts_of_many, tables_of_many
from sbpipe.show.report.one import ESSENTIAL, section_of_run, sections_of_one
from sbpipe.show.report.page import html_page
from sbpipe.show.report.section import Section
from sbpipe.show.report.trace import write_trace
from sbpipe.version import __version__


@dataclass(frozen=True)
class Sources:
    """The runs and studies of a report."""

    runs: list[Run] = field(default_factory=list)
    studies: list[Study] = field(default_factory=list)


def build_report(paths: list[Path], out: Path, *, figures: bool = True) -> Path:
    """Write the report of runs and studies to `out`, figures and traces beside it; returns its path."""
    sources = read_sources(paths)
    if not out.parent.is_dir():
        raise RunDirError(
            f"{out.parent} is not a folder, so {out.name} cannot be written there. Make it, or name another "
            "--out"
        )
    refuse_foreign_links(figures_folder(out), *trace_paths(out, sources.runs))
    try:
        _write(sources, out, figures_folder(out) if figures else None, paths)
    except OSError as error:
        raise RunDirError(
            f"{out.parent} cannot be written ({error.strerror}). Name another place with --out"
        ) from None
    return out


def _write(sources: Sources, out: Path, folder: Path | None, paths: Sequence[Path]) -> None:
    sections = sections_of(sources)
    if folder is not None:
        write_figures(
            [chart for section in sections if not section.is_folded for chart in section.charts], folder
        )
    made_from = ", ".join(str(path) for path in paths)
    footer = [
        *_write_traces(sources.runs, out),
        f"Made by sbpipe {__version__} on {time.strftime('%Y-%m-%d %H:%M %Z')} from {made_from}.",
    ]
    page = html_page(title_of(sources), lead_of(sources), sections, folder.name if folder else None, footer)
    write_atomically(out, page)


def read_sources(paths: Sequence[Path]) -> Sources:
    """Read what each path holds: a study if it has a plan, else a run."""
    sources = Sources()
    # A path that is given twice would make two equal arms.
    for path in dict.fromkeys(paths):
        if (path / PLAN).exists():
            sources.studies.append(read_study(path))
        else:
            _check_run(path)
            sources.runs.append(read_run(path))
    return sources


def sections_of(sources: Sources) -> list[Section]:
    """One run in full; several runs and studies compared first, with single runs folded below."""
    if len(sources.runs) == 1 and not sources.studies:
        return sections_of_one(sources.runs[0])
    together = Section("together", "Runs compared", charts_of_many(sources.runs, sources.studies))
    tables = tables_of_many(sources.runs, sources.studies)
    notes = [f"{run.name}: {note}" for run in sources.runs for note in run.notes]
    singles = [_single(run, run.name, None) for run in sources.runs]
    firsts = [
        _single(run, f"{study.path.name}: {arm}, one run", ESSENTIAL)
        for study in sources.studies
        for arm, run in _first_runs(study)
    ]
    facts = [fact for study in sources.studies for fact in study.facts]
    results = Section("results", "Results", [], tables=tables, notes=[*facts, *notes])
    return [results, together, *_named_apart([*singles, *firsts])]


def write_figures(charts: Sequence[Chart], folder: Path) -> None:
    """Write each chart that draws something as PNG and SVG, over files of the same name."""
    folder.mkdir(exist_ok=True)
    for chart in (chart for chart in charts if chart.spec):
        svg = to_svg(chart)
        (folder / f"{chart.name}.svg").write_text(svg, encoding="utf-8")
        (folder / f"{chart.name}.png").write_bytes(png_of_svg(svg))


def figures_folder(out: Path) -> Path:
    """Where a report's figures go: `figures` beside report.html, NAME-figures beside any other NAME.html."""
    return out.with_name("figures" if out.name == REPORT else f"{out.stem}-figures")


def trace_paths(out: Path, runs: Sequence[Run]) -> list[Path]:
    """Where each run's trace goes, beside the report; runs of the same name are numbered."""
    prefix = "" if out.name == REPORT else f"{out.stem}-"
    if len(runs) == 1:
        return [out.with_name(f"{prefix}trace.json")]
    slugs = [_slug(run.name) for run in runs]
    numbered = [
        slug if slugs.count(slug) == 1 else f"{slug}-{slugs[: k + 1].count(slug)}"
        for k, slug in enumerate(slugs)
    ]
    return [out.with_name(f"{prefix}trace-{slug}.json") for slug in numbered]


def title_of(sources: Sources) -> str:
    """The page's title."""
    names = [run.name for run in sources.runs] + [study.path.name for study in sources.studies]
    return f"sbpipe: {', '.join(names)}" if len(names) < 4 else f"sbpipe: {len(names)} runs and studies"


def lead_of(sources: Sources) -> str:
    """One line under the title."""
    if len(sources.runs) == 1 and not sources.studies:
        return lead_of_run(sources.runs[0])
    studies = [
        f"{study.kind} {study.path.name}: {len(study.arms)} arms, {len(study.cells)} runs"
        for study in sources.studies
    ]
    return " · ".join([*([f"{len(sources.runs)} runs"] if sources.runs else []), *studies])


def _check_run(path: Path) -> None:
    if not path.is_dir():
        reason = "is a file, not a folder" if path.exists() else "does not exist"
        raise RunDirError(f"{path} {reason}. Name a run directory, or the folder of a sweep or a comparison")
    if any((path / name).exists() for name in (CONFIG, TRAINER_EVENTS, SUMMARY)):
        return
    inside = sorted(
        child.name for child in path.iterdir() if (child / CONFIG).exists() or (child / PLAN).exists()
    )
    hint = (
        f"It holds {len(inside)} that can be named, e.g. {path / inside[-1]}"
        if inside
        else "Name a folder that a run wrote"
    )
    raise RunDirError(f"{path} holds no run: none of {CONFIG}, {TRAINER_EVENTS}, {SUMMARY} is there. {hint}")


def _write_traces(runs: Sequence[Run], out: Path) -> list[str]:
    """Write the trace of each run; returns where each is and what it holds."""
    said = []
    for run, path in zip(runs, trace_paths(out, runs), strict=True):
        holds = write_trace(run, path)
        if holds:
            said.append(f"Trace: {path.name} beside this page holds {holds}. Open it with ui.perfetto.dev.")
    return said


def _single(run: Run, title: str, only: tuple[str, ...] | None) -> Section:
    return section_of_run(run, f"run-{_slug(title)}", title, only)


def _first_runs(study: Study) -> list[tuple[str, Run]]:
    """One run of each arm: the first seed with a run directory."""
    found: dict[str, Run] = {}
    for cell in study.cells:
        if cell.arm not in found and (cell.path / TRAINER_EVENTS).exists():
            found[cell.arm] = cell.run()
    return list(found.items())


def _named_apart(sections: Sequence[Section]) -> list[Section]:
    """Sections and their charts under names that are unique on the page."""
    apart = []
    for k, section in enumerate(sections):
        # Charts of two runs have the same names, and a name is an anchor in the page.
        name = f"{section.name}-{k + 1}"
        apart.append(
            replace(
                section,
                name=name,
                charts=[replace(chart, name=f"{name}-{chart.name}") for chart in section.charts],
            )
        )
    return apart


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "run"
