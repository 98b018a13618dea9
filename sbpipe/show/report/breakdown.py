"""Where the wall time went, a stacked bar per arm (the paper's Figures 1 and 10), from summaries alone."""

from statistics import mean
from typing import Any

from sbpipe.runs.numbers import number
from sbpipe.runs.study.arm import Arm
from sbpipe.runs.study.arm_group import ArmGroup
from sbpipe.show.charts import Chart
from sbpipe.show.charts.theme import STAGE_COLOURS
from sbpipe.show.report.scales import without_data
from sbpipe.show.report.table import Table, rounded

PARTS = {
    "selecting": ("selecting, while the trainer waits", STAGE_COLOURS["score"]),
    "forward": ("forward, training", STAGE_COLOURS["forward"]),
    "backward": ("backward and optimizer", STAGE_COLOURS["backward"]),
    "other": ("other (start-up, publish, log, ...)", STAGE_COLOURS["log"]),
    "idle": ("waiting for something else", STAGE_COLOURS["wait"]),
    "hidden": ("selecting, hidden behind training", "#9fd8c0"),
}
"""The parts of a bar in stacking order; `hidden` is drawn beside the bar, since it costs no wall time."""
NEEDED = ("wall_s", "trainer.forward_s", "trainer.backward_s", "trainer.wait_s", "selector.busy_s")
UNEVEN = 1.05
"""If the arms' candidates differ by more than this factor, bars per candidate are drawn as well."""


def breakdown(summary: dict[str, Any], time_s: float | None = None) -> dict[str, float] | None:
    """Seconds per part of one run; None if numbers are missing.

    Without `hidden` they add up to `time_s` or, if that is not given, to the wall time less measuring.
    """
    found = {name: number(summary, name) for name in NEEDED}
    if any(value is None for value in found.values()):
        return None
    wall_s, forward_s, backward_s, wait_s, busy_s = (value for value in found.values() if value is not None)
    backward_s += number(summary, "trainer.optimizer_s") or 0.0
    # The summary does not say what the trainer waited for. All waiting counts as waiting for selectors, up to
    # the seconds that they worked; the rest of their work was hidden behind training.
    selecting_s = min(wait_s, busy_s)
    measured_s = forward_s + backward_s + wait_s + (number(summary, "trainer.evaluate_s") or 0.0)
    return {
        "selecting": selecting_s,
        "forward": forward_s,
        "backward": backward_s,
        "other": wall_s - measured_s if time_s is None else time_s - forward_s - backward_s - wait_s,
        "idle": wait_s - selecting_s,
        "hidden": busy_s - selecting_s,
    }


def breakdown_charts(group: ArmGroup) -> list[Chart]:
    """Seconds of the whole run and, where arms considered unequal numbers, per 1,000 candidates."""
    means = {arm.name: found for arm in group.arms if (found := _mean_parts(arm)) is not None}
    if not means:
        why = "No finished run's summary says where its time went."
        return [without_data("time-breakdown", "Where the time went", why, group.notes)]
    missing = [arm.name for arm in group.arms if arm.name not in means]
    notes: tuple[str, ...] = (
        (f"No bar for {', '.join(missing)}: no finished run whose summary says where its time went.",)
        if missing
        else ()
    )
    # On one device overlap is not free: each takes time from the other.
    shared = [
        arm.name
        for arm in group.arms
        if arm.name in means and means[arm.name]["hidden"] > 0 and _is_on_one_device(arm)
    ]
    if shared:
        notes += (
            f"{', '.join(shared)}: one device, so hidden selecting shared it with training or evaluation "
            "and slowed them.",
        )
    charts = [
        _chart(
            "time-breakdown",
            "Where the time went",
            means,
            "seconds of wall time, measuring excluded (s)",
            notes,
        )
    ]
    per_candidate = {arm.name: _candidates(arm) for arm in group.arms if arm.name in means}
    counts = [count for count in per_candidate.values() if count]
    # Bars of runs that considered very different numbers of candidates do not compare.
    if len(counts) == len(means) > 1 and max(counts) > UNEVEN * min(counts):
        shares = {
            name: {part: 1e6 * seconds / per_candidate[name] for part, seconds in parts.items()}
            for name, parts in means.items()
        }
        title = "Where the time went, per 1,000 candidates"
        charts.append(
            _chart(
                "time-breakdown-per-candidate", title, shares, "wall time per 1,000 candidates (ms)", notes
            )
        )
    return charts


def breakdown_table(group: ArmGroup) -> Table | None:
    """The numbers behind the bars; None without any."""
    means = {arm.name: found for arm in group.arms if (found := _mean_parts(arm)) is not None}
    rows = [
        [
            name,
            *(rounded(parts[part]) for part in PARTS),
            rounded(sum(parts[part] for part in PARTS if part != "hidden")),
        ]
        for name, parts in means.items()
    ]
    header = ["arm", *(f"{label} (s)" for label, _ in PARTS.values()), "sum without hidden (s)"]
    meaning = (
        "Means over an arm's finished runs, whole runs, start-up included, measuring the test error excluded."
    )
    return (
        Table(f"Where the time went{': ' + group.name if group.name else ''}", header, rows, meaning)
        if rows
        else None
    )


def _mean_parts(arm: Arm) -> dict[str, float] | None:
    found = [parts for trial in arm.finished if (parts := breakdown(trial.numbers, trial.time_s)) is not None]
    return {part: mean(parts[part] for parts in found) for part in PARTS} if found else None


def _is_on_one_device(arm: Arm) -> bool:
    return all(trial.devices == 1 for trial in arm.finished)


def _candidates(arm: Arm) -> float:
    counts = [
        count
        for trial in arm.finished
        if breakdown(trial.numbers) and (count := number(trial.numbers, "candidates"))
    ]
    return mean(counts) if counts else 0.0


def _chart(
    name: str, title: str, means: dict[str, dict[str, float]], unit: str, notes: tuple[str, ...]
) -> Chart:
    rows = [
        {
            "arm": arm,
            "part": label,
            "order": order,
            "amount": round(parts[part], 4),
            "lane": "beside" if part == "hidden" else "clock",
        }
        for arm, parts in means.items()
        for order, (part, (label, _)) in enumerate(PARTS.items())
    ]
    sums = [
        {
            "arm": arm,
            "amount": total,
            "lane": "clock",
            "label": f"{total:,.3g}" if total < 1000 else f"{total:,.0f}",
        }
        for arm, parts in means.items()
        if (total := sum(value for part, value in parts.items() if part != "hidden")) is not None
    ]
    meaning = (
        f"{'Each bar is the mean time of an arm' if len(means) > 1 else 'The bar is the time of the run'}, "
        "start-up included, split by what the trainer was doing. Time in which it waited while selectors "
        "worked counts as selecting, so that part is an upper bound; the pale bar below is selecting that "
        "overlapped with training and cost no time."
    )
    return Chart(name, title, meaning, _spec(rows, sums, list(means), unit), notes)


def _spec(
    rows: list[dict[str, Any]], sums: list[dict[str, Any]], arms: list[str], unit: str
) -> dict[str, Any]:
    labels, colours = zip(*PARTS.values(), strict=True)
    y = {
        "field": "arm",
        "type": "nominal",
        "sort": arms,
        "title": "arm",
        "axis": {"labelLimit": 220, "title": None},
    }
    lane = {"field": "lane", "sort": ["clock", "beside"], "scale": {"paddingInner": 0.12}}
    x = {"field": "amount", "type": "quantitative", "title": unit}
    legend = {"title": "part", "orient": "bottom", "columns": 3, "labelLimit": 300}
    return {
        "width": "container",
        "height": max(110, 52 * len(arms)),
        "layer": [
            {
                "data": {"values": rows},
                "mark": {"type": "bar"},
                "encoding": {
                    "y": y,
                    "yOffset": lane,
                    "x": {**x, "stack": "zero"},
                    "color": {
                        "field": "part",
                        "type": "nominal",
                        "scale": {"domain": labels, "range": colours},
                        "legend": legend,
                    },
                    "order": {"field": "order"},
                    "tooltip": [
                        {"field": "arm", "title": "arm"},
                        {"field": "part", "title": "part"},
                        {"field": "amount", "title": unit, "format": ",.3f"},
                    ],
                },
            },
            {
                "data": {"values": sums},
                "mark": {"type": "text", "align": "left", "dx": 4},
                "encoding": {"y": y, "yOffset": lane, "x": x, "text": {"field": "label"}},
            },
        ],
    }
