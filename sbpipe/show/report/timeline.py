"""The timeline of both roles: who did what, when, over some twenty typical steps. Knows neither pages nor
files.
"""

import statistics
from collections.abc import Sequence

from sbpipe.runs import Run
from sbpipe.show.charts import Chart
from sbpipe.show.charts.theme import STAGES
from sbpipe.show.report.encoding import number, word
from sbpipe.show.report.spans import Bar, bars_of, selector_lane, step_begins

SHOWN_STEPS = 20
MARGIN_STEPS = 20
"""Steps before and after those shown, to be seen by dragging."""
WARMUP_SHARE = 0.2
LANE = 46
"""Pixels of a lane's height."""
UNDER = ("idle", "await", "wait")
"""Stages that hold others are drawn first."""
LEGEND = {"orient": "bottom", "columns": 7}
MEANING = (
    "One row per thread, time from left to right. Blue is training (forward, backward, optimizer), green is "
    "scoring and selecting, "
    "pink and purple carry the weights from trainer to selector, red is the trainer waiting for examples, "
    "pale grey a selector "
    "with nothing to do; sand is measuring the test error, for which everybody stops. Two rows filled at the "
    "same time are the overlap the pipeline is for. Drag to move, hold Ctrl or Alt "
    "and turn the wheel to zoom, double-click to go back."
)


def typical_window(begins: Sequence[float], count: int = SHOWN_STEPS) -> tuple[int, int]:
    """First and last step of the stretch whose length is nearest to the median, after the warm-up; near ones
    to the middle win.
    """
    if len(begins) <= count + 1:
        return 0, len(begins) - 1
    first = min(int(WARMUP_SHARE * len(begins)), len(begins) - 1 - count)
    lengths = {k: begins[k + count] - begins[k] for k in range(first, len(begins) - count)}
    median = statistics.median(lengths.values())
    tolerance, middle = 0.02 * median, (len(begins) - count) / 2
    start = min(
        lengths,
        key=lambda k: (abs(lengths[k] - median) > tolerance, abs(k - middle), abs(lengths[k] - median)),
    )
    return start, start + count


def timeline_chart(run: Run) -> Chart | None:
    """The timeline; None for a run without spans."""
    begins = step_begins(run)
    if len(begins) < 2:
        return None
    first, last = typical_window(begins)
    begin, end = begins[first], begins[last]
    wide_begin, wide_end = (
        begins[max(0, first - MARGIN_STEPS)],
        begins[min(len(begins) - 1, last + MARGIN_STEPS)],
    )
    bars = sorted(bars_of(run, wide_begin, wide_end), key=lambda bar: (bar.stage not in UNDER, bar.begin))
    if not bars:
        return None
    steps = run.of("step")
    return Chart(
        name="timeline",
        title="Timeline of both roles",
        meaning=MEANING,
        spec=_spec(bars, begin, end, _lanes(run, bars)),
        notes=(
            f"Steps {steps[first].get('step')} to {steps[last].get('step')} of {len(steps):,}: a stretch of "
            "typical length. "
            "The whole run is in the trace file.",
        ),
    )


def _spec(bars: Sequence[Bar], begin: float, end: float, lanes: list[str]) -> dict[str, object]:
    rows = [
        {
            "lane": bar.lane,
            "stage": bar.stage,
            "begin": round(1e3 * (bar.begin - begin), 3),
            "end": round(1e3 * (bar.end - begin), 3),
            "ms": round(1e3 * (bar.end - bar.begin), 3),
            "task": bar.task,
        }
        for bar in bars
    ]
    found = {bar.stage for bar in bars}
    stages = [stage for stage in STAGES if stage in found] + sorted(found - STAGES.keys())
    colour = {"domain": stages, "range": [STAGES.get(stage, "#999999") for stage in stages]}
    wheel = "wheel![event.ctrlKey || event.altKey || event.metaKey]"
    return {
        "width": "container",
        "height": LANE * len(lanes),
        "data": {"values": rows},
        "params": [
            {
                "name": "zoom",
                "select": {"type": "interval", "encodings": ["x"], "zoom": wheel},
                "bind": "scales",
            }
        ],
        "mark": {"type": "bar", "clip": True, "height": {"band": 0.78}, "strokeWidth": 0.6},
        "encoding": {
            "x": number(
                "begin", "time (ms)", scale={"domain": [0, round(1e3 * (end - begin), 3)], "nice": False}
            ),
            "x2": {"field": "end"},
            "y": word(
                "lane",
                "",
                sort=lanes,
                scale={"domain": lanes},
                axis={"labelLimit": 150, "ticks": False, "domain": False},
            ),
            "color": word("stage", "stage", scale=colour, sort=stages, legend=LEGEND),
            "stroke": word("stage", "stage", scale=colour, sort=stages, legend=LEGEND),
            "tooltip": [
                word("stage", "stage"),
                word("lane", "thread"),
                word("task", "for"),
                number("begin", "begins (ms)"),
                number("ms", "takes (ms)"),
            ],
        },
    }


def _lanes(run: Run, bars: Sequence[Bar]) -> list[str]:
    """The lanes that hold something, the trainer's above the selectors'."""
    names = [selector_lane(name) for name in (*run.selections, "inline")]
    order = [
        "trainer",
        "trainer, side threads",
        *(lane for name in names for lane in (name, f"{name}, weights in")),
    ]
    found = {bar.lane for bar in bars}
    return [lane for lane in dict.fromkeys(order) if lane in found]
