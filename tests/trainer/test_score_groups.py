"""Where there are no classes, a swinging loop shows in the scores of its batches."""

import numpy as np

from sbpipe.trainer.steering.groups import FEWEST, GROUPS, ScoreGroups
from sbpipe.trainer.steering.swing import Swing


def swing_of_batches(shift: float) -> float:
    """The swing of batches whose scores lie high in one and low in the next, by so much."""
    draws, groups, swing = np.random.default_rng(0), ScoreGroups(), Swing()
    for step in range(60):
        centre = shift if step % 2 else -shift
        counts = groups.count((centre + draws.normal(size=64)).astype(np.float32))
        if counts:
            swing.add(counts)
    assert swing.value is not None
    return swing.value


def test_batches_that_swing_between_high_and_low_scores_are_found() -> None:
    assert swing_of_batches(0.0) < 1.5
    assert swing_of_batches(1.5) > 6.0


def test_nothing_is_counted_before_enough_is_known_and_what_was_not_scored_never_is() -> None:
    groups = ScoreGroups()
    assert groups.count(np.arange(FEWEST, dtype=np.float32)) == []
    scores = np.full(GROUPS, np.nan, np.float32)
    assert groups.count(scores) == []
    scores[0] = -1.0
    assert groups.count(scores) == [1] + [0] * (GROUPS - 1)


def test_a_resumed_run_counts_as_the_whole_one() -> None:
    scores = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    whole, first, second = ScoreGroups(), ScoreGroups(), ScoreGroups()
    for row in scores[:5]:
        whole.count(row)
        first.count(row)
    second.restore(first.state())
    assert [whole.count(row) for row in scores[5:]] == [second.count(row) for row in scores[5:]]
