"""The page of one run in reading order: head, charts, facts. Knows no HTML."""

from sbpipe.runs import Run
from sbpipe.runs.study.arm_group import group_runs
from sbpipe.runs.verdict import lines_of
from sbpipe.show.charts import Chart
from sbpipe.show.report.breakdown import breakdown_charts
from sbpipe.show.report.curves import error_over_time
from sbpipe.show.report.examples import example_charts, read_examples
from sbpipe.show.report.facts import fact_tables, full_tables, status_of, tiles_of, warnings_in
from sbpipe.show.report.kept import kept_charts
from sbpipe.show.report.loss import loss_chart, test_charts
from sbpipe.show.report.scores import distribution, score_notes
from sbpipe.show.report.section import Section
from sbpipe.show.report.timeline import timeline_chart

COMPARED = ("error-over-time", "time-breakdown")
"""Charts that a page of several runs draws for all runs together."""
ESSENTIAL = ("timeline", "times-kept", "examples-hardest")
"""The charts of one run per arm on the page of a study."""


def sections_of_one(run: Run) -> list[Section]:
    """A run from its numbers to its settings; a note stands in place of what is missing."""
    # As a group of one, so that a single run uses the code that compares several.
    group = group_runs([run])
    timeline = timeline_chart(run)
    missing = [] if timeline else ["The events hold no spans, so there is no timeline."]
    example_notes: list[str] = []
    sheets = example_charts(read_examples(run.path, example_notes))
    kept = [*kept_charts(run), *_known(distribution(run.of("scores")))]
    return [
        Section("head", "", verdict=lines_of(run.summary), tiles=tiles_of(run), notes=warnings_in(run)),
        Section(
            "training",
            "Error and loss",
            [*_known(error_over_time(group), loss_chart(run)), *test_charts(run)],
        ),
        Section("time", "Time", [*breakdown_charts(group), *_known(timeline)], notes=missing),
        Section("selection", "What was kept", kept, notes=score_notes(run)),
        Section("examples", "Easy and hard examples", sheets, notes=example_notes),
        Section("facts", "Facts and settings", tables=fact_tables(run), is_folded=True),
        Section("everything", "All settings and numbers", tables=full_tables(run), is_folded=True),
    ]


def section_of_run(run: Run, name: str, title: str, only: tuple[str, ...] | None = None) -> Section:
    """A run as one folded section: the charts in `only`, or all that are not drawn for all runs together."""
    sections = sections_of_one(run)
    charts = [
        chart
        for section in sections
        for chart in section.charts
        if (chart.name not in COMPARED if only is None else chart.name in only)
    ]
    notes = [note for section in sections for note in section.notes]
    status = [("status", status_of(run))]
    return Section(
        name,
        title,
        charts,
        fact_tables(run),
        lines_of(run.summary),
        [*status, *tiles_of(run)],
        notes,
        is_folded=True,
    )


def _known(*charts: Chart | None) -> list[Chart]:
    return [chart for chart in charts if chart is not None]
