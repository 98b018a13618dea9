"""Is the loop stable: does the choice swing between classes, and what was done against it. Pure functions
from steps to charts.
"""

from collections.abc import Sequence
from typing import Any

from sbpipe.runs import Run
from sbpipe.runs.numbers import is_number
from sbpipe.runs.reader import Event
from sbpipe.show.charts import Chart
from sbpipe.show.report.encoding import WIDE, number, step_axis, word
from sbpipe.show.report.thinning import bucket_means, thinning_note
from sbpipe.show.terminal import LOOP

SWINGS = {"swing": "swing of the train batches", "prediction_swing": "swing of the predictions"}
STEERING = {name: LOOP[name][0] for name in ("strength", "guard", "ess")}
FIDELITY = "fidelity (Spearman)"
FIDELITY_MEANING = "Agreement of the scores with fresh losses: 1 = the same order, 0 = no relation."
MOST_POINTS = 300
CHANCE = 1.0
LEAST = 0.5


def stability_charts(run: Run) -> list[Chart]:
    """The swing, and under it what steers it; [] of a run that measured neither."""
    steps = run.of("step")
    charts = (swing_chart(steps), steering_chart(steps))
    return [chart for chart in charts if chart is not None]


def swing_chart(steps: Sequence[Event]) -> Chart | None:
    """Both swings over the steps, with the line of chance."""
    rows, names, notes = _rows(steps, SWINGS)
    if not rows:
        return None
    rows = [{**row, "value": max(row["value"], LEAST)} for row in rows]  # a logarithm needs something to show
    level = {"type": "rule", "strokeDash": [5, 4], "strokeWidth": 1.6, "color": "#d1495b"}
    meanings = [_meaning(name, LOOP[name][1]) for name, label in SWINGS.items() if label in names]
    return Chart(
        name="swing",
        title="Swing of the classes over the run",
        meaning=f"{' '.join(meanings)} The dashed line is chance.",
        spec={
            **WIDE,
            "layer": [
                {
                    "data": {"values": rows},
                    "mark": {"type": "line", "tooltip": True},
                    "encoding": {
                        "x": step_axis(),
                        "y": number("value", _SWING_AXIS, scale={"type": "log"}),
                        "color": _colour(names),
                    },
                },
                {
                    "data": {"values": [{"chance": CHANCE}]},
                    "mark": level,
                    "encoding": {"y": number("chance", _SWING_AXIS, scale={"type": "log"})},
                },
            ],
        },
        notes=notes,
    )


def steering_chart(steps: Sequence[Event]) -> Chart | None:
    """Strength, guard and effective sample size, with the fidelity beside them; None when there is only the
    fidelity.
    """
    if not any(is_number(event.get(name)) for event in steps for name in STEERING):
        return None
    rows, names, notes = _rows(steps, {**STEERING, "spearman": FIDELITY})
    meanings = [_meaning(name, LOOP[name][1]) for name, label in STEERING.items() if label in names]
    meanings += [f"Fidelity: {FIDELITY_MEANING}"] if FIDELITY in names else []
    return Chart(
        name="steering",
        title="Strength of the choice, and what it costs",
        meaning=" ".join(meanings),
        spec={
            **WIDE,
            "height": 220,
            "data": {"values": rows},
            "mark": {"type": "line", "tooltip": True},
            "encoding": {
                "x": step_axis(),
                "y": number("value", "share or agreement (0 to 1)"),
                "color": _colour(names),
            },
        },
        notes=notes,
    )


_SWING_AXIS = "variance / variance by chance"


def _rows(
    steps: Sequence[Event], labels: dict[str, str]
) -> tuple[list[dict[str, Any]], list[str], tuple[str, ...]]:
    """A row per point and number that is there, the names of those numbers, and what was left out."""
    known = [event for event in steps if any(is_number(event.get(name)) for name in labels)]
    means = bucket_means(
        [{name: event.get(name) for name in ("step", *labels)} for event in known], MOST_POINTS
    )
    rows = [
        {"step": row["step"], "number": label, "value": round(row[name], 4)}
        for row in means
        for name, label in labels.items()
        if is_number(row[name])
    ]
    names = [label for label in labels.values() if any(row["number"] == label for row in rows)]
    return rows, names, thinning_note(len(known), len(means), "steps", "means of equal stretches")


def _colour(names: list[str]) -> dict[str, Any]:
    return word("number", "number", sort=None, scale={"domain": names})


def _meaning(name: str, sentence: str) -> str:
    return f"{LOOP[name][0].capitalize()}: {sentence}"
