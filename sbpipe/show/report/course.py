"""How one run went on: loss, learning rate and idle time. Pure functions from events to charts."""

from collections.abc import Sequence
from typing import Any

from sbpipe.runs import Run
from sbpipe.runs.reader import Event
from sbpipe.show.charts import Chart
from sbpipe.show.report.encoding import WIDE, number, percent_axis, step_axis, word
from sbpipe.show.report.spans import clock_shift, selector_lane, step_begins, total_s
from sbpipe.show.report.thinning import bucket_means, stretches, thin, thinning_note

MOST_POINTS = 300
MOST_STRETCHES = 100
APART = ("evaluate", "checkpoint")
"""Stages of the trainer's loop that are no part of training: idle time is counted without them."""


def course_charts(run: Run) -> list[Chart]:
    """Loss and learning rate."""
    charts = (loss_chart(run), rate_chart(run))
    return [chart for chart in charts if chart is not None]


def loss_chart(run: Run) -> Chart | None:
    """The loss of the train batches, with its spread where many steps share a point."""
    steps = [event for event in run.of("step") if event.get("loss") is not None]
    if len(steps) < 2:
        return None
    rows = [_spread(stretch, "loss") for stretch in stretches(steps, MOST_POINTS)]
    return Chart(
        name="loss",
        title="Loss of the train batches",
        meaning="Mean loss of the kept examples of each step. It lies above the loss of all examples, "
        "because the hard ones are "
        "kept more often. The band goes from the lowest to the highest step of a stretch.",
        spec={
            **WIDE,
            "data": {"values": rows},
            "encoding": {"x": step_axis()},
            "layer": [
                {
                    "mark": {"type": "area", "opacity": 0.25},
                    "encoding": {"y": number("low", "loss"), "y2": {"field": "high"}},
                },
                {"mark": {"type": "line", "tooltip": True}, "encoding": {"y": number("mean", "loss")}},
            ],
        },
        notes=thinning_note(
            len(steps), len(rows), "steps", "means of equal stretches, with lowest and highest"
        ),
    )


def rate_chart(run: Run) -> Chart | None:
    """The learning rate."""
    steps = [event for event in run.of("step") if event.get("rate") is not None]
    if len(steps) < 2:
        return None
    rows = [{"step": event["step"], "rate": event["rate"]} for event in thin(steps, MOST_POINTS)]
    return Chart(
        name="learning-rate",
        title="Learning rate",
        meaning="The learning rate at each step, as the schedule gave it.",
        spec={
            **WIDE,
            "height": 160,
            "data": {"values": rows},
            "mark": {"type": "line", "tooltip": True},
            "encoding": {"x": step_axis(), "y": number("rate", "learning rate")},
        },
        notes=thinning_note(len(steps), len(rows), "steps"),
    )


def idle_chart(run: Run) -> Chart | None:
    """The share of time in which each role had nothing to do."""
    rows = [*trainer_idle(run), *selector_idle(run)]
    if not rows:
        return None
    return Chart(
        name="idle",
        title="Idle time of both roles",
        meaning="Share of the time in which the trainer waited for examples, and in which a selector waited "
        "for work or weights. "
        "A well matched pair has the trainer near 0 %; a selector that idles has room for a slower, cheaper "
        "device.",
        spec={
            **WIDE,
            "height": 200,
            "data": {"values": rows},
            "mark": {"type": "line", "tooltip": True},
            "encoding": {
                "x": number("time", "time since the first step (s)"),
                "y": number("idle", "idle", axis=percent_axis(), scale={"domain": [0, 1]}),
                "color": word("role", "role", sort=None),
            },
        },
        notes=("Evaluations and checkpoints are left out of the trainer's time.",),
    )


def trainer_idle(run: Run) -> list[dict[str, Any]]:
    """The trainer's waiting share in equal stretches of steps; a step's spans are those since the step
    before.
    """
    steps, begins = run.of("step"), step_begins(run)
    if len(steps) < 3:
        return []
    rows = []
    for numbers in stretches(range(1, len(steps)), MOST_STRETCHES):
        first, last = numbers[0], numbers[-1]
        apart = apart_s(steps[first - 1 : last + 1], begins[first - 1], begins[last])
        lasted = begins[last] - begins[first - 1] - apart
        if lasted > 0:
            waited = sum(total_s(steps[k], "wait") for k in numbers)
            rows.append(_idle_row(begins[last] - begins[0], waited / lasted, "trainer"))
    return rows


def apart_s(steps: Sequence[Event], begin: float, end: float) -> float:
    """Seconds between two moments that the loop spent beside training; an evaluation may be told by the step
    before or after it.
    """
    spans = [event.get("spans", {}).get(stage, []) for event in steps for stage in APART]
    pairs = [
        (start, start + lasted)
        for times in spans
        for start, lasted in zip(times[::2], times[1::2], strict=False)
    ]
    return float(sum(max(0.0, min(stop, end) - max(start, begin)) for start, stop in pairs))


def selector_idle(run: Run) -> list[dict[str, Any]]:
    """Each selector's share without work: waits for leases and for weights, without the time of loading
    these.
    """
    begins = step_begins(run)
    rows = []
    for name, selections in run.selections.items():
        if not any(total_s(selection, "idle") for selection in selections):
            continue  # a selector in the trainer's process does not wait, it is called
        shift = clock_shift(run.of("step"), selections)
        for numbers in stretches(range(1, len(selections)), MOST_STRETCHES):
            first, last = selections[numbers[0] - 1], selections[numbers[-1]]
            lasted = last["clock"] - first["clock"]
            since = last["clock"] + shift - (begins[0] if begins else first["clock"] + shift)
            if lasted > 0 and since > 0:
                idle = sum(_idle_s(selections[k]) for k in numbers)
                rows.append(_idle_row(since, idle / lasted, selector_lane(name)))
    return rows


def _idle_s(selection: Event) -> float:
    return total_s(selection, "idle") + max(
        0.0, total_s(selection, "await") - total_s(selection, "apply") - total_s(selection, "apply_fast")
    )


def _idle_row(time_s: float, share: float, role: str) -> dict[str, Any]:
    return {"time": round(time_s, 3), "idle": round(min(1.0, max(0.0, share)), 4), "role": role}


def _spread(events: Sequence[Event], field: str) -> dict[str, float]:
    """The mean, lowest and highest of a field over a stretch of steps."""
    mean = bucket_means([{"step": event["step"], "mean": event[field]} for event in events], 1)[0]
    values = [event[field] for event in events]
    return {**mean, "low": min(values), "high": max(values)}
