"""Charts of the losses over a run, of train batches and test set, and of the user's own metric. Pure."""

from collections.abc import Sequence
from math import fsum

from sbpipe.runs import Run
from sbpipe.runs.gathering import Stretch
from sbpipe.runs.numbers import number
from sbpipe.show.charts import Chart
from sbpipe.show.report.encoding import lines, quantitative, with_band
from sbpipe.show.report.thinning import stretches_by_weight, thinning_note

MOST_POINTS = 300


def loss_chart(run: Run) -> Chart | None:
    """The mean loss of each step, with a band where many steps share a point; None for fewer than two."""
    steps = [stretch for stretch in run.steps if stretch.loss is not None]
    num_steps = sum(stretch.num_steps for stretch in steps)
    if num_steps < 2:
        return None
    pieces = stretches_by_weight(steps, [stretch.num_steps for stretch in steps], MOST_POINTS)
    rows = [_spread(piece) for piece in pieces]
    x = quantitative("step", "step", scale={"nice": False, "zero": False})
    y = quantitative("loss", "loss", scale={"zero": False})
    return Chart(
        name="loss",
        title="Training loss",
        meaning="Mean loss of the kept examples of each step. Hard examples are kept more often, so it lies "
        "above the loss of all examples.",
        spec=with_band(lines(rows, x, y), "low", "high"),
        notes=thinning_note(
            num_steps, len(rows), "steps", "means of equal stretches, in a band from lowest to highest"
        ),
    )


def test_charts(run: Run) -> list[Chart]:
    """The test loss, and the user's own metric if there is one; each needs two evaluations."""
    names = [event.get("metric_name") for event in run.of("eval") if event.get("metric_name")]
    own = str(names[-1]) if names else "metric"
    found = (
        _over_evaluations(run, "loss", "test-loss", "Test loss", "Mean loss of the test set."),
        _over_evaluations(run, "metric", "metric", own, "Mean of eval.metric over the test set."),
    )
    return [chart for chart in found if chart is not None]


def _over_evaluations(run: Run, field: str, name: str, title: str, meaning: str) -> Chart | None:
    measured = [(number(event, "step"), number(event, field)) for event in run.of("eval")]
    rows = [
        {"step": step, field: value} for step, value in measured if step is not None and value is not None
    ]
    if len(rows) < 2:
        return None
    x = quantitative("step", "step", scale={"nice": False, "zero": False})
    y = quantitative(field, title.lower() if field == "loss" else title, scale={"zero": False})
    return Chart(name=name, title=title, meaning=meaning, spec=lines(rows, x, y, mark={"point": True}))


def _spread(piece: Sequence[Stretch]) -> dict[str, float]:
    middle = piece[len(piece) // 2]
    count = sum(stretch.num_steps for stretch in piece)
    return {
        "step": (middle.first + middle.last + 1) // 2,
        "loss": fsum((stretch.loss or 0.0) * stretch.num_steps for stretch in piece) / count,
        "low": min(stretch.low for stretch in piece if stretch.low is not None),
        "high": max(stretch.high for stretch in piece if stretch.high is not None),
    }
