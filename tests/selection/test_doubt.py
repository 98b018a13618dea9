"""Doubted candidates travel as bits, and are passed over only if their score is high again."""

import numpy as np
import pytest

from sbpipe.records import Lease
from sbpipe.selection.doubt import packed, passed_over


def lease(**changes: object) -> Lease:
    return Lease(0, 1, 8, 18, 3, 3, 0, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 8, 10])
def test_bits_come_back_as_they_were(count: int) -> None:
    is_doubted = np.arange(10) % 3 == 0
    high = np.full(count, 5.0, np.float32)
    over = passed_over(lease(doubted=packed(is_doubted), doubt_above=2.0), high)
    assert over is not None
    assert over.tolist() == is_doubted[:count].tolist()


def test_what_was_learnt_since_or_has_no_score_is_not_passed_over() -> None:
    scores = np.array([2.5, 1.9, np.nan, 2.5, 2.5], np.float32)
    over = passed_over(lease(doubted=packed(np.arange(10) < 4), doubt_above=2.0), scores)
    assert over is not None
    assert over.tolist() == [True, False, False, True, False]


def test_where_nobody_is_doubted_nothing_travels() -> None:
    assert packed(np.zeros(10, bool)) is None
    assert passed_over(lease(), np.ones(10, np.float32)) is None
