"""How sure the network is of the true class on the test set (the paper's Figures 8 and 9). Pure functions."""

from collections.abc import Sequence

from sbpipe.runs import Run
from sbpipe.runs.reader import Event
from sbpipe.show.charts import Chart
from sbpipe.show.report.encoding import WIDE, number, percent_axis, progress_colour, progress_of
from sbpipe.show.report.thinning import thin, thinning_note

MOST_CURVES = 6


def confidence_charts(run: Run) -> list[Chart]:
    """Target confidence and accuracy by percentile."""
    measured = [event for event in run.of("eval") if event.get("confidence")]
    return [target_confidence(measured), accuracy_by_percentile(measured)] if measured else []


def confidence_notes(run: Run) -> list[str]:
    """Why the confidence is not shown, if it is not."""
    if any(event.get("confidence") for event in run.of("eval")):
        return []
    return ["No evaluation holds the target confidence of the test set, so it is not shown."]


def target_confidence(measured: Sequence[Event]) -> Chart:
    """The inverse cumulative distribution of target confidence."""
    return _curves(
        measured,
        "confidence",
        name="target-confidence",
        title="Target confidence by percentile of the test set",
        meaning="Test examples from the hardest (left) to the easiest (right), and the probability the "
        "network gives to their true "
        "class; one line per evaluation. The left side is where selection is meant to help.",
        axis="probability of the true class",
    )


def accuracy_by_percentile(measured: Sequence[Event]) -> Chart:
    """The accuracy in equal groups of test examples, the least confident first."""
    return _curves(
        measured,
        "confidence_accuracy",
        name="accuracy-by-percentile",
        title="Accuracy by percentile of target confidence",
        meaning="The same order of test examples, hardest left: the share of each group that is classified "
        "rightly. An example can be "
        "right although its confidence is low, if the other classes get even less.",
        axis="classified rightly",
    )


def _curves(
    measured: Sequence[Event], field: str, *, name: str, title: str, meaning: str, axis: str
) -> Chart:
    shown = thin(measured, MOST_CURVES)
    last = measured[-1].get("candidates") or 1
    rows = [
        {
            "percentile": round(_percentile(k, len(event[field]), field), 2),
            "value": value,
            "progress": done,
            "step": event["step"],
        }
        for event, done in zip(shown, progress_of(shown, last), strict=True)
        for k, value in enumerate(event.get(field) or [])
        if value is not None
    ]
    return Chart(
        name=name,
        title=title,
        meaning=meaning,
        spec={
            **WIDE,
            "data": {"values": rows},
            "mark": {"type": "line", "tooltip": True},
            "encoding": {
                "x": number(
                    "percentile",
                    "percentile of target confidence",
                    scale={"domain": [0, 100]},
                    axis={"tickCount": 6},
                ),
                "y": number("value", axis, axis=percent_axis(), scale={"domain": [0, 1]}),
                "color": progress_colour(),
                "detail": {"field": "step"},
            },
        },
        notes=thinning_note(len(measured), len(shown), "evaluations"),
    )


def _percentile(position: int, count: int, field: str) -> float:
    """Where a value stands: percentiles reach from 0 to 100, groups have their middle."""
    if field == "confidence":
        return 100.0 * position / max(1, count - 1)
    return 100.0 * (position + 0.5) / count
