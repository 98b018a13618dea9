"""How often selection kept each example, and its keep rate in each class. Pure functions."""

from collections.abc import Iterable, Sequence

from sbpipe.runs import Run
from sbpipe.runs.reader import Event
from sbpipe.show.charts import Chart
from sbpipe.show.report.encoding import PERCENT, bars, ordinal, quantitative
from sbpipe.show.report.thinning import thinning_note

MOST_BARS = 40
MOST_CLASSES = 40


def kept_charts(run: Run) -> list[Chart]:
    """Times kept, and the keep rate of each class."""
    counts, rates = last_times_kept(run), keep_rates(run.of("scores"))
    return [*([times_kept(counts)] if counts else []), *([keep_rate_by_class(rates)] if rates else [])]


def last_times_kept(run: Run) -> list[int]:
    """At index k the number of examples kept k times by the end; [] if nothing was counted."""
    counted = [[count or 0 for count in event.get("times_kept") or []] for event in run.of("scores")]
    return next((counts for counts in reversed(counted) if sum(counts) > 0), [])


def never_kept_share(run: Run) -> float | None:
    """Share of the considered examples that were never kept; None if nothing was counted."""
    counts = last_times_kept(run)
    return counts[0] / sum(counts) if counts else None


def keep_rates(events: Iterable[Event]) -> dict[int, float]:
    """Kept / considered of each class over the whole run; classes never considered are left out."""
    kept: dict[int, int] = {}
    considered: dict[int, int] = {}
    for event in events:  # each counts what came since the previous one
        # In a damaged event one list may be shorter, or have holes.
        pairs = zip(event.get("class_kept") or [], event.get("class_considered") or [], strict=False)
        for class_index, (num_kept, num_considered) in enumerate(pairs):
            kept[class_index] = kept.get(class_index, 0) + (num_kept or 0)
            considered[class_index] = considered.get(class_index, 0) + (num_considered or 0)
    return {index: kept[index] / count for index, count in considered.items() if count}


def times_kept(counts: Sequence[int]) -> Chart:
    """How many examples were kept how often."""
    total, tail = sum(counts), sum(counts[MOST_BARS:])
    by_times = {str(times): count for times, count in enumerate(counts[:MOST_BARS])}
    by_times |= {f"{MOST_BARS}+": tail} if tail else {}
    rows = [{"times": times, "examples": count, "share": count / total} for times, count in by_times.items()]
    times, share = ordinal("times", "times kept"), quantitative("share", "share of examples", axis=PERCENT)
    examples = quantitative("examples", "examples", format=",")
    return Chart(
        name="times-kept",
        title="How often examples were kept",
        meaning=f"Of {total:,} examples considered, {counts[0] / total:.1%} were never kept: the network was "
        "not trained on them. Those on the right it was trained on most.",
        spec=bars(rows, times, share, [times, examples, {**share, "format": ".2%"}]),
    )


def keep_rate_by_class(rates: dict[int, float]) -> Chart:
    """Which classes selection prefers, the most kept first."""
    order = sorted(rates, key=lambda index: -rates[index])
    rows = [{"class": str(index), "rate": round(rates[index], 4)} for index in order[:MOST_CLASSES]]
    label, rate = ordinal("class", "class"), quantitative("rate", "keep rate", axis=PERCENT)
    return Chart(
        name="keep-rate-by-class",
        title="Keep rate of each class",
        meaning="Share of each class's candidates that were kept, over the whole run. The network finds the "
        "classes on the left hard.",
        spec=bars(rows, label, rate, [label, {**rate, "format": ".1%"}]),
        notes=thinning_note(len(rates), len(rows), "classes", "those kept most"),
    )
