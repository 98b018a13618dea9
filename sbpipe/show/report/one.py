"""All pictures of one run, in the order a reader wants them. Knows no page."""

from sbpipe.runs import Run
from sbpipe.show.charts import Chart
from sbpipe.show.report.classes import class_charts
from sbpipe.show.report.confidence import confidence_charts, confidence_notes
from sbpipe.show.report.course import course_charts, idle_chart
from sbpipe.show.report.examples import example_charts, read_examples
from sbpipe.show.report.facts import fact_tables, folded_tables, status_of, tiles_of, warnings_in
from sbpipe.show.report.kept import kept_charts
from sbpipe.show.report.scores import score_charts, score_notes
from sbpipe.show.report.section import Section
from sbpipe.show.report.stability import stability_charts
from sbpipe.show.report.staleness import staleness_charts, staleness_notes
from sbpipe.show.report.timeline import timeline_chart

ESSENTIAL = (
    "timeline",
    "idle",
    "staleness-histogram",
    "fidelity",
    "swing",
    "score-distribution",
    "times-kept",
    "examples-hardest",
)
"""What the page of a study shows of one run of each arm."""


def charts_of_one(run: Run) -> list[Chart]:
    """Every picture of a run that its files allow."""
    return [chart for section in sections_of_one(run) for chart in section.charts]


def sections_of_one(run: Run) -> list[Section]:
    """A run from its numbers to its examples; what is missing is said where it would be."""
    timeline = timeline_chart(run)
    missing = [] if timeline else ["The events hold no spans, so there is no timeline."]
    example_notes: list[str] = []
    sheets = example_charts(read_examples(run.path, example_notes))
    return [
        Section("summary", "Summary", tiles=tiles_of(run), tables=fact_tables(run), notes=warnings_in(run)),
        Section("pipeline", "The pipeline at work", _known(timeline, idle_chart(run)), notes=missing),
        Section("training", "Training", course_charts(run)),
        Section(
            "staleness-and-fidelity",
            "Staleness and fidelity",
            staleness_charts(run),
            notes=staleness_notes(run),
        ),
        Section("stability", "Is the loop stable?", stability_charts(run)),
        Section(
            "selection",
            "Scores and selection",
            [*score_charts(run), *kept_charts(run), *class_charts(run)],
            notes=score_notes(run),
        ),
        Section("examples", "Easy and hard examples", sheets, notes=example_notes),
        Section(
            "test-set", "The test set, from hard to easy", confidence_charts(run), notes=confidence_notes(run)
        ),
        Section("everything", "All settings and numbers", tables=folded_tables(run), is_folded=True),
    ]


def section_of_run(run: Run, name: str, title: str, only: tuple[str, ...] | None = None) -> Section:
    """A run as one folded section, with the charts named or all of them."""
    sections = sections_of_one(run)
    charts = [chart for section in sections for chart in section.charts if only is None or chart.name in only]
    notes = [note for section in sections for note in section.notes]
    status = [("status", status_of(run))]
    return Section(name, title, charts, fact_tables(run), [*status, *tiles_of(run)], notes, is_folded=True)


def _known(*charts: Chart | None) -> list[Chart]:
    return [chart for chart in charts if chart is not None]
