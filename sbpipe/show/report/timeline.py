"""The timeline of both roles over some twenty typical steps. Knows no page."""

import statistics
from collections.abc import Sequence

from sbpipe.runs import Run
from sbpipe.runs.names import STAGE_LABELS
from sbpipe.show.charts import Chart
from sbpipe.show.charts.chart import Spec
from sbpipe.show.charts.theme import STAGE_COLOURS
from sbpipe.show.report.encoding import nominal, quantitative
from sbpipe.show.report.lanes import StageSpan, selector_lane, stage_spans, step_begins

SHOWN_STEPS = 20
MARGIN_STEPS = 20
"""Steps before and after the shown ones, which dragging reveals."""
WARMUP_SHARE = 0.2
LANE = 46
"""Pixels of a lane's height."""
UNDER = ("idle", "await", "wait")
"""Stages that hold others are drawn first."""
LEGEND = {"orient": "bottom", "columns": 7}
UNKNOWN_COLOUR = "#999999"
MEANING = (
    "One row per thread. Blue is training, green is scoring and selecting, pink and purple carry weights to "
    "the selector, red is the trainer waiting, pale grey a selector with nothing to do. Rows filled at the "
    "same time are the overlap the pipeline is for. Drag to move, hold Ctrl and turn the wheel to zoom, "
    "double-click to go back."
)


def typical_window(begins: Sequence[float], count: int = SHOWN_STEPS) -> tuple[int, int]:
    """First and last step of a stretch of about median duration, after the warm-up, near the middle."""
    # A short run is shown as a whole.
    if len(begins) <= count + 1:
        return 0, len(begins) - 1
    first = min(int(WARMUP_SHARE * len(begins)), len(begins) - 1 - count)
    lengths = {k: begins[k + count] - begins[k] for k in range(first, len(begins) - count)}
    median = statistics.median(lengths.values())
    # Many windows are close to the median: of these, take the one nearest to the middle of the run.
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
    wide_begin = begins[max(0, first - MARGIN_STEPS)]
    wide_end = begins[min(len(begins) - 1, last + MARGIN_STEPS)]
    spans = sorted(
        stage_spans(run, wide_begin, wide_end), key=lambda span: (span.stage not in UNDER, span.begin)
    )
    if not spans:
        return None
    steps = run.of("step")
    return Chart(
        name="timeline",
        title="Timeline of both roles",
        meaning=MEANING,
        spec=_spec(spans, begin, end, _lanes(run, spans)),
        notes=(
            f"Steps {steps[first].get('step')} to {steps[last].get('step')} of {run.num_steps:,}: a stretch "
            "of typical length. The trace file beside this page has more.",
        ),
    )


def _spec(spans: Sequence[StageSpan], begin: float, end: float, lanes: list[str]) -> Spec:
    # The wheel alone must scroll the page, not zoom the chart.
    wheel = "wheel![event.ctrlKey || event.altKey || event.metaKey]"
    zoom = {"type": "interval", "encodings": ["x"], "zoom": wheel}
    shown = {"domain": [0, _ms(end - begin)], "nice": False}
    axis = {"labelLimit": 150, "ticks": False, "domain": False}
    stage = nominal("stage", "stage", legend=LEGEND, **_colours(spans))
    return {
        "width": "container",
        "height": LANE * len(lanes),
        "data": {"values": [_row(span, begin) for span in spans]},
        "params": [{"name": "zoom", "select": zoom, "bind": "scales"}],
        "mark": {"type": "bar", "clip": True, "height": {"band": 0.78}, "strokeWidth": 0.6},
        "encoding": {
            "x": quantitative("begin", "time (ms)", scale=shown),
            "x2": {"field": "end"},
            "y": nominal("lane", "", sort=lanes, scale={"domain": lanes}, axis=axis),
            "color": stage,
            # Without an outline a stage shorter than a pixel would not show.
            "stroke": stage,
            "tooltip": [
                nominal("stage", "stage"),
                nominal("lane", "thread"),
                nominal("task", "for"),
                quantitative("begin", "begins (ms)"),
                quantitative("ms", "takes (ms)"),
            ],
        },
    }


def _row(span: StageSpan, begin: float) -> dict[str, object]:
    return {
        "lane": span.lane,
        "stage": STAGE_LABELS.get(span.stage, span.stage),
        "begin": _ms(span.begin - begin),
        "end": _ms(span.end - begin),
        "ms": _ms(span.end - span.begin),
        "task": span.task,
    }


def _colours(spans: Sequence[StageSpan]) -> Spec:
    """Order and colours of the stages found, the same in every chart."""
    found = {span.stage for span in spans}
    stages = [*(stage for stage in STAGE_COLOURS if stage in found), *sorted(found - STAGE_COLOURS.keys())]
    labels = [STAGE_LABELS.get(stage, stage) for stage in stages]
    colours = [STAGE_COLOURS.get(stage, UNKNOWN_COLOUR) for stage in stages]
    return {"sort": labels, "scale": {"domain": labels, "range": colours}}


def _lanes(run: Run, spans: Sequence[StageSpan]) -> list[str]:
    """The lanes that are not empty, the trainer's above the selectors'."""
    names = [selector_lane(name) for name in (*run.selections, "inline")]
    order = [
        "trainer",
        "trainer, side threads",
        *(lane for name in names for lane in (name, f"{name}, weights in")),
    ]
    found = {span.lane for span in spans}
    return [lane for lane in dict.fromkeys(order) if lane in found]


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)
