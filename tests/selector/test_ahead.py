"""How much of a lease is queued before any of it is read: pure arithmetic."""

import math

from sbpipe.records import Lease
from sbpipe.selector.ahead import Ahead


def lease(enough: int = 32, **changes: object) -> Lease:
    given = {"start": 0, "stop": 3 * enough * 4, "enough": enough, "most": enough, "keep": 0.25, "version": 0}
    return Lease(lease_id=0, epoch=0, **(given | changes))  # type: ignore[arg-type]


def test_a_yield_that_never_moves_needs_no_margin_but_whole_passes() -> None:
    ahead = Ahead()
    for _ in range(4):
        ahead.note(lease(), considered=128, kept=32)
    assert ahead.num_candidates(lease(), 16) == 128
    assert ahead.num_candidates(lease(), 48) == 3 * 48


def test_a_yield_that_moves_is_reckoned_with_at_its_low_end() -> None:
    ahead = Ahead()
    for kept in (16, 32, 16, 32):
        ahead.note(lease(), considered=128, kept=kept)
    assert 128 * 4 / 3 < ahead.num_candidates(lease(), 1) <= math.ceil(32 / (0.25 * 0.375))


def test_more_is_queued_before_any_yield_is_known_and_never_more_than_the_lease() -> None:
    assert 128 < Ahead().num_candidates(lease(), 16) < 256
    assert Ahead().num_candidates(lease(stop=100), 16) == 100


def test_where_all_are_kept_nothing_is_queued_in_vain() -> None:
    ahead = Ahead()
    ahead.note(lease(keep_all=True), considered=32, kept=32)
    assert ahead.num_candidates(lease(keep_all=True), 16) == 32
