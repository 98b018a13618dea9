"""The distribution of scores over training. Pure functions."""

from collections.abc import Sequence

from sbpipe.runs import Run
from sbpipe.runs.reader import Event
from sbpipe.show.charts import Chart
from sbpipe.show.report.encoding import PERCENT, lines, quantitative
from sbpipe.show.report.thinning import thin, thinning_note

MOST_CURVES = 12
EDGE_PERCENTILE = 99


def score_notes(run: Run) -> list[str]:
    """Why there are no charts of scores, if there are none."""
    if not run.of("scores"):
        return ["The run wrote no `scores` events: what was kept, and from which scores, cannot be shown."]
    if not any(event.get("quantiles") for event in run.of("scores")):
        return ["The policy did not score candidates, so there is no distribution of scores."]
    return []


def distribution(events: Sequence[Event]) -> Chart | None:
    """The cumulative distribution of scores, a line per event (the paper's Figure 3); None for only one."""
    scored = [event for event in events if len(event.get("quantiles") or ()) > 1]
    if len(scored) < 2:
        return None
    shown = thin(scored, MOST_CURVES)
    total = scored[-1].get("candidates") or 1
    rows = [
        {
            "score": round(score, 5),
            "share": percentile / max(1, len(event["quantiles"]) - 1),
            "progress": round(100.0 * (event.get("candidates") or 0) / total, 2),
            "step": event.get("step"),
        }
        for event in shown
        for percentile, score in enumerate(event["quantiles"])
        if score is not None
    ]
    # A few scores are far above the rest: an axis up to the highest would squeeze every line to the left.
    edge = max(
        event["quantiles"][EDGE_PERCENTILE * (len(event["quantiles"]) - 1) // 100] or 0.0 for event in shown
    )
    x = quantitative("score", "score (loss)", scale={"domain": [0, edge or 1.0]}, axis={"tickCount": 8})
    colour = quantitative("progress", "progress (%)", scale={"scheme": "viridis", "domain": [0, 100]})
    return Chart(
        name="score-distribution",
        title="Scores over training",
        meaning="Each line is one moment: the share of recent scores below a value. Lines that move up and "
        "to the left say that most examples have become easy, so selecting the others pays.",
        spec=lines(
            rows,
            x,
            quantitative("share", "share of scores below", axis=PERCENT),
            mark={"clip": True, "strokeWidth": 1.5},
            color=colour,
            detail={"field": "step"},
            order={"field": "share"},
        ),
        notes=(
            *thinning_note(len(scored), len(shown), "moments"),
            f"The highest {100 - EDGE_PERCENTILE} % of scores may lie beyond the right edge.",
        ),
    )
