"""Which rounds are looked into, and what is said of the others: without a device, round by round."""

from collections import defaultdict

import numpy as np
import pytest

from sbpipe.machine.gaps import Gaps
from sbpipe.machine.rounds import Round


class Loop:
    """A loop beside a device that is faster than its host, or slower."""

    def __init__(self) -> None:
        self.held_s: list[tuple[int, float]] = []
        """Before which round the device was held back, and for how long."""
        self.count, self.truth_s = 0, 0.0
        self.gaps = Gaps(lambda seconds: not self.held_s.append((self.count, seconds)))

    def take(self, launching_s: float, computed_s: float, *, waits: bool = False) -> None:
        """A round; `waits`: in its middle the host waits for the device."""
        self.count += 1
        self.truth_s += computed_s
        is_held = self.gaps.hold()
        slept_s = self.held_s[-1][1] if is_held else 0.0
        is_dry = waits or slept_s < launching_s
        lasted_s = computed_s if slept_s + computed_s > launching_s and not is_dry else launching_s
        behind_s = max(0.0, slept_s + computed_s - launching_s)
        stages_s = defaultdict(float, {"forward": lasted_s})
        is_ahead = computed_s > launching_s and not waits
        self.gaps.note(
            Round(
                0.0,
                is_held,
                is_dry=is_dry and not is_ahead,
                launching_s=launching_s + (slept_s if waits else 0.0),
                behind_s=computed_s if is_ahead else 0.0 if is_dry else behind_s,
                lasted_s=computed_s if is_ahead else lasted_s,
                stages_s=stages_s,
            )
        )

    @property
    def said(self) -> float:
        """What is said to have been computed, of what was."""
        return self.gaps.worked_s(["forward"]) / self.truth_s


def test_a_round_is_looked_into_however_long_it_takes_to_launch() -> None:
    loop = Loop()
    for _ in range(40):
        loop.take(launching_s=2.0, computed_s=1.2)
    assert loop.held_s[0] == (4, pytest.approx(3.0))
    assert loop.said == pytest.approx(1.0)


def test_a_look_that_ran_dry_is_repeated_in_the_next_round_with_twice_the_hold() -> None:
    loop = Loop()
    for number in range(1, 7):
        loop.take(launching_s=1.6 if number >= 4 else 1.0, computed_s=0.5)
    assert loop.held_s == [(4, pytest.approx(1.5)), (5, pytest.approx(3.0))]
    assert loop.gaps.gap_s == pytest.approx(3 * 0.5 + 2 * 1.1)


def test_looks_go_on_after_a_burst_of_load() -> None:
    loop = Loop()
    for number in range(1, 401):
        loop.take(launching_s=1.7 ** min(number, 30) if number < 60 else 1.0, computed_s=0.5)
    assert [number for number, _ in loop.held_s if number > 100] != []
    assert loop.said == pytest.approx(1.0)


def test_where_the_host_waits_in_every_round_looks_are_few_but_never_end() -> None:
    loop = Loop()
    for _ in range(1000):
        loop.take(launching_s=1.0, computed_s=0.5, waits=True)
    assert 2 <= len(loop.held_s) <= 6
    assert sum(slept_s for _, slept_s in loop.held_s) < 0.01 * 1000
    for _ in range(4000):
        loop.take(launching_s=1.0, computed_s=0.5)
    assert loop.gaps.gap_s > 0.0


def test_where_rounds_differ_more_of_them_are_looked_into() -> None:
    rng = np.random.default_rng(0)
    steady, noisy = Loop(), Loop()
    for _ in range(1000):
        steady.take(launching_s=1.0, computed_s=0.5)
        noisy.take(launching_s=1.0, computed_s=float(rng.uniform(0.2, 0.8)))
    assert len(noisy.held_s) > len(steady.held_s) + 2


def test_slow_rounds_are_looked_into_like_any_other() -> None:
    rng, said = np.random.default_rng(0), []
    for _ in range(150):
        loop = Loop()
        for _ in range(400):
            slow = float(rng.lognormal(0.0, 0.4))  # of a loaded machine: they compute more, too
            loop.take(launching_s=slow, computed_s=0.6 * slow)
        said.append(loop.said)
    assert np.mean(said) == pytest.approx(1.0, abs=0.05)


def test_a_long_run_sleeps_for_less_than_two_rounds_in_a_thousand() -> None:
    loop = Loop()
    for _ in range(100_000):
        loop.take(launching_s=1.0, computed_s=0.5)
    assert sum(slept_s for _, slept_s in loop.held_s) < 0.002 * 100_000


def test_without_a_look_any_of_the_time_may_have_been_gaps_and_the_error_says_so() -> None:
    gaps = Gaps(lambda seconds: False)
    for _ in range(10):
        assert not gaps.hold()
        gaps.note(Round(0.0, is_dry=True, lasted_s=2.0, stages_s=defaultdict(float, {"forward": 1.5})))
    assert (gaps.worked_s(["forward"]), gaps.gap_s, gaps.error_s) == (15.0, 0.0, 20.0)


def test_a_device_that_sets_the_pace_is_known_to_compute_all_the_time() -> None:
    loop = Loop()
    for _ in range(50):
        loop.take(launching_s=1.0, computed_s=3.0)
    assert loop.held_s == []
    assert (loop.said, loop.gaps.error_s) == (pytest.approx(1.0), 0.0)
