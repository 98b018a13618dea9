"""The claims of a selector, limited to what is possible: times by the clock, scores by float32. Pure.

A selector that holds a key may still lie. A lie must not end the run, nor affect more than the selector's own
choice of examples.
"""

from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

import numpy as np

from sbpipe.records import Floats, Selection, SelectorStats

MAX_SCORE = 1e15
"""Squares of scores, and sums of these, stay finite in float32."""
# Seconds of a processor, where many cores may work at once.
_MOST_CORES = 1024.0
_CLOCK_SLACK_S = 1.0
_SECONDS = [field.name for field in fields(SelectorStats) if field.name.endswith("_s")]
_MILLISECONDS = [field.name for field in fields(SelectorStats) if field.name.endswith("_ms")]
_all_times = attrgetter(*_SECONDS, *_MILLISECONDS)


def possible_stats(stats: SelectorStats, known_s: float) -> SelectorStats:
    """The statistics of a selector that has been known for `known_s`: it cannot have worked for longer."""
    most_s = known_s + _CLOCK_SLACK_S
    # Every honest selector passes here: all its numbers are below the smallest limit.
    if max(time or 0.0 for time in _all_times(stats)) <= most_s:
        return stats
    limits = dict.fromkeys(_SECONDS, most_s) | {"score_cpu_s": _MOST_CORES * most_s}
    limits |= dict.fromkeys(_MILLISECONDS, 1000.0 * most_s)
    excess: dict[str, Any] = {
        name: limit
        for name, limit in limits.items()
        if (value := getattr(stats, name)) is not None and value > limit
    }
    return replace(stats, **excess) if excess else stats


def possible_selection(selection: Selection, known_s: float) -> Selection:
    """A selection whose finite scores are small enough to compute with."""
    stats = possible_stats(selection.stats, known_s)
    scores = _bounded(selection.scores)
    if stats is selection.stats and scores is selection.scores:
        return selection
    return replace(selection, stats=stats, scores=scores)


def _bounded(scores: Floats) -> Floats:
    # The usual case in two calls; with a NaN neither comparison holds.
    if not len(scores) or (
        np.minimum.reduce(scores) >= -MAX_SCORE and np.maximum.reduce(scores) <= MAX_SCORE
    ):
        return scores
    # Infinity and NaN stay: they mean that there is no score, and are counted where that matters.
    is_huge = np.isfinite(scores) & (np.abs(scores) > MAX_SCORE)
    if not is_huge.any():
        return scores
    return np.where(is_huge, np.copysign(np.float32(MAX_SCORE), scores), scores).astype(np.float32)
