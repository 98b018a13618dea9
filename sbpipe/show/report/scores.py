"""What the scores looked like while training went on, and what they meant for single examples. Pure
functions.
"""

from collections.abc import Sequence

from sbpipe.runs import Run
from sbpipe.runs.reader import Event
from sbpipe.show.charts import Chart
from sbpipe.show.report.encoding import (
    WIDE,
    number,
    percent_axis,
    progress_colour,
    progress_of,
    step_axis,
    word,
)
from sbpipe.show.report.thinning import thin, thinning_note

MOST_CURVES = 12
MOST_FOLLOWED = 6
EDGE_PERCENTILE = 99


def score_charts(run: Run) -> list[Chart]:
    """The distribution of scores over training, and the keep probability of single examples."""
    charts = (distribution(run.of("scores")), followed_examples(run.of("scores")))
    return [chart for chart in charts if chart is not None]


def score_notes(run: Run) -> list[str]:
    """Why there are no pictures of scores, if there are none."""
    if not run.of("scores"):
        return [
            "The run wrote no `scores` events, so the distribution of scores and what was kept cannot be "
            "shown."
        ]
    if not any(event.get("quantiles") for event in run.of("scores")):
        return ["The policy did not score candidates, so there is no distribution of scores."]
    return []


def distribution(events: Sequence[Event]) -> Chart | None:
    """The cumulative distribution of the last scores, one line per moment (the paper's Figure 3)."""
    scored = [event for event in events if event.get("quantiles")]
    if not scored:
        return None
    shown = thin(scored, MOST_CURVES)
    rows = [
        {
            "score": round(score, 5),
            "share": percentile / (len(event["quantiles"]) - 1),
            "progress": done,
            "step": event["step"],
        }
        for event, done in zip(shown, progress_of(shown, scored[-1].get("candidates") or 1), strict=True)
        for percentile, score in enumerate(event["quantiles"])
        if score is not None
    ]
    edge = max(
        event["quantiles"][EDGE_PERCENTILE * (len(event["quantiles"]) - 1) // 100] or 0.0 for event in shown
    )
    return Chart(
        name="score-distribution",
        title="Distribution of scores over training",
        meaning="Each line is one moment: the share of recent scores (losses) below a value. Lines that move "
        "up and to the left say "
        "that most examples have become easy; what is left on the right is what selection is for.",
        spec={
            **WIDE,
            "data": {"values": rows},
            "mark": {"type": "line", "clip": True, "strokeWidth": 1.5, "tooltip": True},
            "encoding": {
                "x": number(
                    "score",
                    "score (loss in the selector's forward pass)",
                    scale={"domain": [0, edge or 1.0]},
                    axis={"tickCount": 8},
                ),
                "y": number("share", "share of scores below", axis=percent_axis()),
                "color": progress_colour(),
                "detail": {"field": "step"},
                "order": {"field": "share"},
            },
        },
        notes=(
            *thinning_note(len(scored), len(shown), "moments"),
            f"The highest {100 - EDGE_PERCENTILE} % of scores may lie beyond the right edge.",
        ),
    )


def followed_examples(events: Sequence[Event]) -> Chart | None:
    """The keep probability of a few examples each time they were considered (the paper's Figure 15)."""
    followed = [event for event in events if (event.get("panel") or {}).get("ids")]
    if not followed:
        return None
    ids = thin(followed[0]["panel"]["ids"], MOST_FOLLOWED)
    rows = [
        {
            "step": event["step"],
            "example": f"example {example_id}",
            "chance": round(chance, 5),
            "score": score,
        }
        for event in followed
        for example_id, chance, score in zip(
            event["panel"]["ids"], event["panel"]["keep_probability"], event["panel"]["score"], strict=True
        )
        if example_id in ids and chance is not None
    ]
    if not rows:
        return None
    return Chart(
        name="keep-probability",
        title="Keep probability of single examples",
        meaning="Each line is one training example: its chance of being kept when it was last considered. "
        "Lines that jump say that "
        "which examples are hard keeps changing; a line that stays high is an example the network does not "
        "learn.",
        spec={
            **WIDE,
            "data": {"values": rows},
            "mark": {"type": "line", "point": True, "tooltip": True},
            "encoding": {
                "x": step_axis(),
                "y": number("chance", "keep probability", axis=percent_axis(), scale={"domain": [0, 1]}),
                "color": word("example", "example", sort=None),
            },
        },
        notes=thinning_note(len(followed[0]["panel"]["ids"]), len(ids), "followed examples"),
    )
