"""The loss of the train batches over a run. Pure functions from events to a chart."""

from collections.abc import Sequence
from statistics import mean

from sbpipe.runs import Run
from sbpipe.runs.reader import Event
from sbpipe.show.charts import Chart
from sbpipe.show.report.encoding import lines, quantitative, with_band
from sbpipe.show.report.thinning import stretches, thinning_note

MOST_POINTS = 300


def loss_chart(run: Run) -> Chart | None:
    """The mean loss of each step, with its spread where many steps share a point; None of fewer than two."""
    steps = [event for event in run.of("step") if event.get("loss") is not None]
    if len(steps) < 2:
        return None
    rows = [_spread(stretch) for stretch in stretches(steps, MOST_POINTS)]
    x = quantitative("step", "step", scale={"nice": False, "zero": False})
    y = quantitative("loss", "loss", scale={"zero": False})
    return Chart(
        name="loss",
        title="Training loss",
        meaning="Mean loss of the kept examples of each step. Hard examples are kept more often, so it lies "
        "above the loss of all examples.",
        spec=with_band(lines(rows, x, y), "low", "high"),
        notes=thinning_note(
            len(steps), len(rows), "steps", "means of equal stretches, in a band from lowest to highest"
        ),
    )


def _spread(stretch: Sequence[Event]) -> dict[str, float]:
    losses = [event["loss"] for event in stretch]
    middle = stretch[len(stretch) // 2]["step"]
    return {"step": middle, "loss": mean(losses), "low": min(losses), "high": max(losses)}
