"""How old scores were when they were trained on, and how well they still agreed with fresh losses. Pure
functions.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sbpipe.runs import Run
from sbpipe.runs.reader import Event
from sbpipe.show.charts import Chart
from sbpipe.show.report.encoding import (
    WIDE,
    number,
    percent_axis,
    progress_colour,
    progress_of,
    rank,
    step_axis,
    word,
)
from sbpipe.show.report.thinning import bucket_means, stretches, thin, thinning_note

PARTS = {
    "age_mean": "age on arrival",
    "queue_mean": "time in the queue",
    "staleness_mean": "staleness (both)",
}
OVER_STEPS = {**PARTS, "fast_staleness_mean": "staleness of the fast parts"}
MOST_POINTS = 300
MOST_MEANS = 100
MOST_DOTS = 700
MOST_BARS = 40
FEW_STEPS = 3
"""A mean over fewer steps than this says nothing."""
GOOD_AGREEMENT = "1 means the same order, 0 no agreement"


def staleness_charts(run: Run) -> list[Chart]:
    """The histogram, staleness and fidelity over the run, and one against the other."""
    steps = run.of("step")
    charts = (
        histogram(steps),
        staleness_over_steps(steps),
        fidelity_over_steps(steps),
        fidelity_against_staleness(steps),
    )
    return [chart for chart in charts if chart is not None]


def staleness_notes(run: Run) -> list[str]:
    """Why the histogram is not there, if it is not."""
    has_counts = any(event.get("staleness_counts") for event in run.of("step"))
    return (
        [] if has_counts else ["The steps hold no staleness_counts, so there is no histogram of staleness."]
    )


def histogram_rows(steps: Sequence[Event]) -> list[dict[str, Any]]:
    """The share of trained examples at each number of steps, for the age on arrival, the time in the queue
    and their sum.
    """
    parts: dict[str, Counter[int]] = {name: Counter() for name in PARTS.values()}
    age_of, queue_of, both = parts.values()
    for event in steps:
        for age, queue, count in event.get("staleness_counts") or []:
            age_of[age] += count
            queue_of[queue] += count
            both[age + queue] += count
    total = sum(both.values())
    most = max(both, default=0)
    rows = []
    for name, counter in parts.items():
        for value in range(min(most, MOST_BARS) + 1):
            count = (
                counter[value]
                if value < MOST_BARS
                else sum(n for steps_old, n in counter.items() if steps_old >= value)
            )
            label = f"{value}+" if value == MOST_BARS and most > MOST_BARS else str(value)
            rows.append({"part": name, "steps": label, "examples": count, "share": count / max(1, total)})
    return rows if total else []


def histogram(steps: Sequence[Event]) -> Chart | None:
    """Staleness of trained examples, split into its two parts."""
    rows = histogram_rows(steps)
    if not rows:
        return None
    return Chart(
        name="staleness-histogram",
        title="Staleness of the trained examples",
        meaning="How many optimizer steps lay between the weights that scored an example and the step that "
        "trained it. The age on "
        "arrival comes from scoring with older weights; the rest was spent in the trainer's queue. 0 is what "
        "one process does.",
        spec={
            **WIDE,
            "data": {"values": rows},
            "mark": {"type": "bar", "tooltip": True},
            "encoding": {
                "x": rank("steps", "steps", sort=None, axis={"labelAngle": 0}),
                "xOffset": word("part", "part", sort=list(PARTS.values())),
                "y": number("share", "share of trained examples", axis=percent_axis()),
                "color": word("part", "part", sort=list(PARTS.values())),
                "tooltip": [
                    word("part", "part"),
                    rank("steps", "steps"),
                    number("examples", "examples", format=","),
                    number("share", "share", format=".1%"),
                ],
            },
        },
    )


def staleness_over_steps(steps: Sequence[Event]) -> Chart | None:
    """The mean staleness of each batch, and its parts."""
    known = [event for event in steps if event.get("staleness_mean") is not None]
    if len(known) < 2:
        return None
    means = bucket_means(
        [{key: event.get(key) for key in ("step", *OVER_STEPS)} for event in known], MOST_MEANS
    )
    rows = [
        {"step": row["step"], "part": name, "steps": row[key]}
        for row in means
        for key, name in OVER_STEPS.items()
        if row[key] is not None
    ]
    parts = [name for name in OVER_STEPS.values() if any(row["part"] == name for row in rows)]
    return Chart(
        name="staleness",
        title="Staleness over the run",
        meaning="Mean staleness of each train batch and its two parts. A line that climbs says the queue "
        "grows or the weights reach "
        "the selector ever later. The fast parts (normalisation, biases, head) may be published more often "
        "than the rest, and are younger.",
        spec={
            **WIDE,
            "data": {"values": rows},
            "mark": {"type": "line", "tooltip": True},
            "encoding": {
                "x": step_axis(),
                "y": number("steps", "mean staleness (steps)", scale={"zero": True}),
                "color": word("part", "part", sort=parts),
            },
        },
        notes=thinning_note(len(known), len(means), "steps", "means of equal stretches"),
    )


def fidelity_over_steps(steps: Sequence[Event]) -> Chart | None:
    """The rank agreement of score and fresh loss."""
    known = [event for event in steps if event.get("spearman") is not None]
    if len(known) < 2:
        return None
    rows = []
    for stretch in stretches(known, MOST_POINTS):
        values = [event["spearman"] for event in stretch]
        row = {
            "step": stretch[len(stretch) // 2]["step"],
            "mean": sum(values) / len(values),
            "low": min(values),
            "high": max(values),
        }
        rows.append(row)
    return Chart(
        name="fidelity",
        title="Score fidelity over the run",
        meaning="Do the selector's scores still put the trained examples in the order of their fresh losses? "
        "Spearman's rank "
        f"correlation within each batch: {GOOD_AGREEMENT}. The band goes from the lowest to the highest step "
        "of a stretch.",
        spec={
            **WIDE,
            "data": {"values": rows},
            "encoding": {"x": step_axis()},
            "layer": [
                {
                    "mark": {"type": "area", "opacity": 0.25},
                    "encoding": {"y": number("low", _AXIS), "y2": {"field": "high"}},
                },
                {
                    "mark": {"type": "line", "tooltip": True},
                    "encoding": {"y": number("mean", _AXIS, scale={"zero": False})},
                },
            ],
        },
        notes=thinning_note(
            len(known), len(rows), "steps", "means of equal stretches, with lowest and highest"
        ),
    )


def fidelity_against_staleness(steps: Sequence[Event]) -> Chart | None:
    """One dot per step, and the mean over steps of about the same staleness."""
    known = [
        event
        for event in steps
        if event.get("spearman") is not None and event.get("staleness_mean") is not None
    ]
    if len(known) < 2:
        return None
    progress = progress_of(known, known[-1]["step"], "step")
    dots = [
        {
            "staleness": round(event["staleness_mean"], 3),
            "fidelity": round(event["spearman"], 4),
            "progress": done,
            "step": event["step"],
        }
        for event, done in zip(known, progress, strict=True)
    ]
    shown = thin(dots, MOST_DOTS)
    fidelity = number("fidelity", _AXIS, scale={"zero": False})
    return Chart(
        name="fidelity-against-staleness",
        title="Fidelity against staleness",
        meaning=f"One dot per step; {GOOD_AGREEMENT}. Crosses are means over steps of about the same "
        "staleness. Dots that fall to the "
        "right say that older scores are worse; colour shows whether it is age or just the early, "
        "fast-changing part of the run.",
        spec={
            **WIDE,
            "encoding": {"x": number("staleness", "mean staleness of the batch (steps)"), "y": fidelity},
            "layer": [
                {
                    "data": {"values": shown},
                    "mark": {"type": "point", "filled": True, "size": 22, "opacity": 0.55, "tooltip": True},
                    "encoding": {"color": progress_colour()},
                },
                {
                    "data": {"values": _mean_by_staleness(dots)},
                    "mark": {
                        "type": "point",
                        "shape": "cross",
                        "filled": True,
                        "size": 140,
                        "color": "#d1495b",
                        "tooltip": True,
                    },
                },
            ],
        },
        notes=thinning_note(len(dots), len(shown), "steps"),
    )


_AXIS = "rank agreement (Spearman)"


def _mean_by_staleness(dots: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Means over quarters of a step, or over wider bins where staleness is large."""
    width = max(0.25, (max(dot["staleness"] for dot in dots) - min(dot["staleness"] for dot in dots)) / 12)
    bins: dict[int, list[dict[str, float]]] = {}
    for dot in dots:
        bins.setdefault(round(dot["staleness"] / width), []).append(dot)
    enough = [found for _, found in sorted(bins.items()) if len(found) >= FEW_STEPS]
    return [
        {
            "staleness": round(sum(dot["staleness"] for dot in found) / len(found), 3),
            "fidelity": round(sum(dot["fidelity"] for dot in found) / len(found), 4),
            "steps": len(found),
        }
        for found in enough
    ]
