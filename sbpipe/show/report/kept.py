"""How often examples were kept: the histogram at the end, and the share never kept on the way. Pure
functions.
"""

from collections.abc import Sequence
from typing import Any

from sbpipe.runs import Run
from sbpipe.runs.reader import Event
from sbpipe.show.charts import Chart
from sbpipe.show.report.encoding import WIDE, number, percent_axis, rank, step_axis
from sbpipe.show.report.thinning import thin, thinning_note

MOST_BARS = 40
MOST_MOMENTS = 200


def kept_charts(run: Run) -> list[Chart]:
    """Times kept, and the share of examples never kept."""
    counted = [event for event in run.of("scores") if sum(event.get("times_kept") or [])]
    if not counted:
        return []
    return [times_kept(counted[-1]["times_kept"]), *([never_kept(counted)] if len(counted) > 1 else [])]


def never_kept_share(event: Event) -> float:
    """Share of the considered examples that were never kept up to a `scores` event."""
    counts = event["times_kept"]
    return float(counts[0] / sum(counts))


def times_kept(counts: Sequence[int]) -> Chart:
    """How many examples were kept how often."""
    total = sum(counts)
    tail = sum(counts[MOST_BARS:])
    rows: list[dict[str, Any]] = [
        {"times": str(k), "examples": count, "share": count / total}
        for k, count in enumerate(counts[:MOST_BARS])
    ]
    if tail:
        rows.append({"times": f"{MOST_BARS}+", "examples": tail, "share": tail / total})
    return Chart(
        name="times-kept",
        title="How often examples were kept",
        meaning=f"Of {total:,} examples considered, {counts[0] / total:.1%} were never kept, so the network "
        "was never trained on them; "
        "those at the right are the ones it was trained on most.",
        spec={
            **WIDE,
            "data": {"values": rows},
            "mark": {"type": "bar"},
            "encoding": {
                "x": rank("times", "times kept", sort=None, axis={"labelAngle": 0}),
                "y": number("share", "share of examples", axis=percent_axis()),
                "tooltip": [
                    rank("times", "times kept"),
                    number("examples", "examples", format=","),
                    number("share", "share", format=".2%"),
                ],
            },
        },
    )


def never_kept(counted: Sequence[Event]) -> Chart:
    """The share of examples that had never been kept, while the run went on."""
    shown = thin(counted, MOST_MOMENTS)
    return Chart(
        name="never-kept",
        title="Examples never kept so far",
        meaning="Share of the examples considered at least once that had not been kept until then. What "
        "stays at the end is the part of "
        "the data set that selection left out.",
        spec={
            **WIDE,
            "height": 200,
            "data": {
                "values": [
                    {"step": event["step"], "share": round(never_kept_share(event), 5)} for event in shown
                ]
            },
            "mark": {"type": "line", "point": True, "tooltip": True},
            "encoding": {
                "x": step_axis(),
                "y": number("share", "never kept", axis=percent_axis(), scale={"zero": True}),
            },
        },
        notes=thinning_note(len(counted), len(shown), "moments"),
    )
