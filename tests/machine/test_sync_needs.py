"""How often weights must go out and how far ahead must be leased: seconds in, numbers out."""

from dataclasses import replace

import pytest

from sbpipe.machine.sync_needs import FOLLOWED_SHARE, SyncCosts, depth_needed, interval_needed, revised


def needed(**costs: float) -> float:
    return max(interval_needed(SyncCosts(**costs)).values())


def test_publishing_may_take_a_hundredth_of_the_time() -> None:
    assert needed(step_s=0.1, publish_s=0.001) == pytest.approx(1.0)
    assert needed(step_s=0.1, publish_s=0.008) == pytest.approx(8.0)


def test_weights_go_out_no_more_often_than_they_arrive() -> None:
    assert needed(step_s=0.1, transfer_s=0.3, apply_s=0.05) == pytest.approx(3.5)


def test_applying_fits_into_what_scoring_leaves_of_a_step() -> None:
    assert needed(step_s=0.1, apply_s=0.04, score_s=0.075) == pytest.approx(2.0)


def test_a_selector_without_time_to_spare_applies_in_a_twentieth_of_its_time() -> None:
    assert needed(step_s=0.1, apply_s=0.04, score_s=0.4) == pytest.approx(2.0)


def test_more_is_leased_where_the_way_takes_longer_than_a_step() -> None:
    assert depth_needed(SyncCosts(step_s=0.1, round_trip_s=0.24)) == pytest.approx(2.4)


@pytest.mark.parametrize(
    ("current", "need", "new"),
    [
        (1, 0.2, 1),
        (1, 1.4, 1),
        (1, 1.6, 2),
        (8, 5.0, 8),
        (8, 11.0, 8),
        (8, 13.0, 13),
        (8, 3.5, 4),
        (8, 0.0, 1),
    ],
)
def test_what_is_in_use_stays_while_it_is_near_enough(current: int, need: float, new: int) -> None:
    assert revised(current, need, 64) == new
    assert revised(new, need, 64) == new, "a decision does not undo itself"


def test_where_keep_follows_applying_may_take_a_fifth_of_the_selectors_time() -> None:
    busy = SyncCosts(step_s=0.1, apply_s=0.02, score_s=0.09)
    assert max(interval_needed(busy).values()) == pytest.approx(4.0)
    assert max(interval_needed(replace(busy, apply_share=FOLLOWED_SHARE)).values()) == pytest.approx(1.0)


def test_nothing_exceeds_its_bound() -> None:
    assert revised(1, 1e9, 64) == 64
    assert revised(8, 8.0, 3) == 3
