"""What selection did to the classes: how often each was kept, and how its share swings from batch to batch.
Pure functions.

What a swing is, `sbpipe.trainer.steering.swing` says; here it is told class by class.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbpipe.runs import Run
from sbpipe.runs.reader import Event
from sbpipe.show.charts import Chart
from sbpipe.show.charts.theme import CATEGORY
from sbpipe.show.report.encoding import WIDE, number, percent_axis, rank, step_axis, word
from sbpipe.show.report.thinning import thin, thinning_note
from sbpipe.trainer.steering.swing import WINDOW, spreads

AROUND = WINDOW // 2
"""Batches before and after that make the moving mean a batch is compared with."""
MOST_BATCHES = 250
MOST_CLASSES = 40
MOST_MOMENTS = 60
Table = NDArray[np.float64]


def class_charts(run: Run) -> list[Chart]:
    """Keep rate per class, the swing of each class, and the share of the one that swings most."""
    charts = [keep_rate_by_class(run.of("scores"))]
    counts = batch_counts(run.of("step"))
    if len(counts) >= WINDOW:
        charts += [swing_by_class(counts), swing_of_one(run.of("step"), counts)]
    return [chart for chart in charts if chart is not None]


def batch_counts(steps: Sequence[Event]) -> Table:
    """How often each class appears in each train batch (batches, classes); empty without classes."""
    counts = [event["class_counts"] for event in _counted(steps)]
    return (
        np.array(counts, np.float64)
        if counts and len({len(row) for row in counts}) == 1
        else np.empty((0, 0))
    )


def shares_of(counts: Table) -> Table:
    """The share of each class in each batch."""
    shares: Table = counts / counts.sum(axis=1, keepdims=True)
    return shares


def moving_mean(shares: Table, around: int = AROUND) -> Table:
    """The mean over the batches around each; at the ends over those that are there."""
    sums = np.vstack([np.zeros(shares.shape[1]), np.cumsum(shares, axis=0)])
    position = np.arange(len(shares))
    first, last = np.maximum(0, position - around), np.minimum(len(shares), position + around + 1)
    mean: Table = (sums[last] - sums[first]) / (last - first)[:, None]
    return mean


def swings(counts: Table) -> Table:
    """The swing of each class: its variance in windows of successive batches over that of chance, both summed
    over the windows.
    """
    windows = [
        spreads(counts[first : first + WINDOW]) for first in range(0, len(counts) - WINDOW + 1, WINDOW)
    ]
    found = np.sum([window[0] for window in windows], axis=0)
    chance = np.sum([window[1] for window in windows], axis=0)
    factors: Table = np.divide(found, chance, out=np.zeros_like(found), where=chance > 0)
    return factors


def keep_rate_by_class(events: Sequence[Event]) -> Chart | None:
    """Kept / considered of each class between two moments: lines for few classes, a map for many."""
    counted = [event for event in events if any(event.get("class_considered") or [])]
    if not counted:
        return None
    shown = thin(counted, MOST_MOMENTS)
    rows = [
        {
            "step": event["step"],
            "class": f"{number_of:>2}",
            "rate": round(kept / considered, 4),
            "considered": considered,
        }
        for event in shown
        for number_of, (kept, considered) in enumerate(
            zip(event["class_kept"], event["class_considered"], strict=True)
        )
        if considered and number_of < MOST_CLASSES
    ]
    num_classes = len(counted[0]["class_considered"])
    rate = number("rate", "keep rate", axis=percent_axis(), scale={"zero": True})
    return Chart(
        name="keep-rate-by-class",
        title="Keep rate per class",
        meaning="Share of each class's candidates that were kept since the moment before. Classes above the "
        "others are the ones the "
        "network finds hard at that time.",
        spec=_lines(rows, rate) if num_classes <= len(CATEGORY) else _map(rows),
        notes=(
            *thinning_note(len(counted), len(shown), "moments"),
            *thinning_note(num_classes, min(num_classes, MOST_CLASSES), "classes", "the first ones"),
        ),
    )


def swing_by_class(counts: Table) -> Chart:
    """How much each class swings, against chance."""
    factors, shares = swings(counts), shares_of(counts)
    order = np.argsort(-factors, kind="stable")[:MOST_CLASSES]
    rows = [
        {"class": str(k), "factor": round(float(factors[k]), 3), "mean": round(float(shares[:, k].mean()), 4)}
        for k in order
    ]
    return Chart(
        name="class-swing",
        title="Swing of the classes from batch to batch",
        meaning=f"The variance of a class's share over {WINDOW} successive train batches, as a multiple of "
        "what drawing at random would "
        "give. 1 is chance, fresh selection reaches 4; above 6, selection overshoots: it floods the batches "
        "with a class and then starves it.",
        spec={
            **WIDE,
            "height": 200,
            "layer": [
                {
                    "data": {"values": rows},
                    "mark": {"type": "bar", "tooltip": True},
                    "encoding": {
                        "x": word("class", "class", sort=None, axis={"labelAngle": 0}),
                        "y": number("factor", _TIMES_CHANCE),
                        "tooltip": [
                            word("class", "class"),
                            number("factor", "times chance"),
                            number("mean", "mean share", format=".1%"),
                        ],
                    },
                },
                {
                    "data": {"values": [{"chance": 1.0}]},
                    "mark": {"type": "rule", "strokeDash": [5, 4], "strokeWidth": 1.6, "color": "#d1495b"},
                    "encoding": {"y": number("chance", _TIMES_CHANCE)},
                },
            ],
        },
        notes=thinning_note(len(factors), len(rows), "classes", "those that swing most"),
    )


def swing_of_one(steps: Sequence[Event], counts: Table) -> Chart:
    """The share of the class that swings most in successive batches, with the band of chance."""
    found, shares, batch_size = (
        int(np.argmax(swings(counts))),
        shares_of(counts),
        float(np.median(counts.sum(axis=1))),
    )
    numbers = [event["step"] for event in _counted(steps)]
    mean = moving_mean(shares)[:, found]
    first = max(0, (len(numbers) - MOST_BATCHES) // 2)
    rows = []
    for k in range(first, min(len(numbers), first + MOST_BATCHES)):
        spread = 2.0 * math.sqrt(mean[k] * (1.0 - mean[k]) / batch_size)
        low, high = max(0.0, mean[k] - spread), min(1.0, mean[k] + spread)
        rows.append(
            {
                "step": numbers[k],
                "share": float(shares[k, found]),
                "low": round(low, 4),
                "high": round(high, 4),
            }
        )
    outside = sum(not row["low"] <= row["share"] <= row["high"] for row in rows) / len(rows)
    return Chart(
        name="class-share",
        title=f"Share of class {found} in successive batches",
        meaning="The class that swings most. The band holds about 95 % of batches if they were drawn at "
        "random around the moving mean; "
        f"here {outside:.0%} of them lie outside.",
        spec={
            **WIDE,
            "data": {"values": rows},
            "encoding": {"x": step_axis()},
            "layer": [
                {
                    "mark": {"type": "area", "opacity": 0.25, "color": "#7a8794"},
                    "encoding": {"y": number("low", _SHARE, axis=percent_axis()), "y2": {"field": "high"}},
                },
                {
                    "mark": {"type": "line", "strokeWidth": 1.2, "tooltip": True},
                    "encoding": {"y": number("share", _SHARE)},
                },
            ],
        },
        notes=thinning_note(len(numbers), len(rows), "batches", "in a row, from the middle of the run"),
    )


_SHARE = "share of the train batch"
_TIMES_CHANCE = "variance / variance by chance"


def _counted(steps: Sequence[Event]) -> list[Event]:
    return [event for event in steps if any(event.get("class_counts") or [])]


def _lines(rows: list[dict[str, Any]], rate: dict[str, Any]) -> dict[str, Any]:
    encoding = {"x": step_axis(), "y": rate, "color": word("class", "class", sort=None)}
    return {
        **WIDE,
        "data": {"values": rows},
        "mark": {"type": "line", "point": True, "tooltip": True},
        "encoding": encoding,
    }


def _map(rows: list[dict[str, Any]]) -> dict[str, Any]:
    colour = number("rate", "keep rate", scale={"scheme": "viridis"}, legend={"format": ".0%"})
    encoding = {"x": rank("step", "step"), "y": rank("class", "class", sort=None), "color": colour}
    return {
        **WIDE,
        "height": 12 * len({row["class"] for row in rows}),
        "data": {"values": rows},
        "mark": {"type": "rect", "tooltip": True},
        "encoding": encoding,
    }
