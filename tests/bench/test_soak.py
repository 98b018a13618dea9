"""A training that is killed again and again loses nothing, and growth is seen where there is some."""

from collections import Counter
from dataclasses import replace

import pytest
from support.runs import sbpipe

from sbpipe.bench.faults.soak import Plan, Soaked, rows_of, soak, verdict
from sbpipe.bench.faults.trial import Ending
from sbpipe.bench.faults.vitals import Life, Reading, Vitals, growth_across, growth_within

GOOD = Ending(code=0, error=0.05, idle=0.0, lost=0, twice=0, words="")
SOAKED = Soaked(Plan(60.0, 20.0, 2), 61.0, Counter({"trainer killed": 3}), Vitals(), 1, 0, GOOD)


def life(rss_mb: float, *, more_mb: float = 0.0, num_files: int = 20, seconds: int = 40) -> Life:
    readings = [Reading(float(age), rss_mb + more_mb * (age > 30), num_files) for age in range(seconds)]
    return Life("trainer", 0.0, readings)


def test_processes_are_compared_with_others_of_the_same_age() -> None:
    young, leaking = [life(100.0), life(100.0)], [life(110.0, num_files=22), life(110.0, num_files=22)]
    assert growth_across([*young, *young, *young]) == (0.0, 0)
    assert growth_across([*young, *young, *leaking]) == (pytest.approx(0.1), 2)
    assert growth_across(young) is None


def test_growth_within_the_longest_life_is_seen() -> None:
    assert growth_within([life(100.0, seconds=25), life(100.0, more_mb=5.0)]) == (pytest.approx(0.05), 39.0)
    assert growth_within([life(100.0, seconds=5)]) is None


@pytest.mark.parametrize(
    ("soaked", "complaint"),
    [
        (SOAKED, ""),
        (replace(SOAKED, ending=replace(GOOD, lost=3)), "candidates lost 3"),
        (replace(SOAKED, ending=replace(GOOD, twice=None)), "candidates considered twice 8e"),
        (replace(SOAKED, ending=replace(GOOD, code=1)), "exit code 1"),
        (replace(SOAKED, left_shared=1), "shared memory, left at the end 1"),
    ],
)
def test_the_verdict_says_in_words_what_is_wrong(soaked: Soaked, complaint: str) -> None:
    words = verdict(soaked, rows_of(soaked))
    assert "3 x trainer killed" in words
    assert complaint in words
    assert ("NOT as it must be" in words) == bool(complaint)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_considers_every_candidate_once() -> None:
    for times in (1, 4, 16):
        soaked = soak(Plan(seconds=4.0 * times, every_s=1.5 * times, epochs=4, seed=4))
        assert [row.what for row in rows_of(soaked) if row.is_met is False] == []
        # On a busy machine the processes may not be there yet when they are to be killed.
        if {"trainer killed", "selector killed"} <= soaked.faults.keys():
            return
    raise AssertionError(f"not both roles were killed: {soaked.faults}")


def test_an_argument_of_another_bench_is_refused() -> None:
    for arguments, words in (
        (("faults", "--minutes", "3"), "--minutes"),
        (("soak", "--minutes", "-3"), "above 0"),
    ):
        done = sbpipe("bench", *arguments)
        assert done.returncode == 2
        assert words in done.stderr
