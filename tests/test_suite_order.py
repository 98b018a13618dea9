"""The order in which workers take the tests: a permutation, slow ones first in everybody's part."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from support.order import slow_first

SUITES = st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=60).map(sorted)


@given(SUITES, st.integers(2, 4))
def test_every_test_comes_once_and_the_slow_ones_of_a_file_together(
    suite: list[tuple[str, bool]], num_workers: int
) -> None:
    files, is_slow = [file for file, _ in suite], [slow for _, slow in suite]
    order = slow_first(files, is_slow, num_workers)
    assert sorted(order) == list(range(len(suite)))
    slow = [files[position] for position in order if is_slow[position]]
    assert sum(a != b for a, b in pairwise(slow)) == max(0, len(set(slow)) - 1)


def test_each_workers_part_begins_with_slow_tests_and_ends_with_quick_ones() -> None:
    files = ["slow"] * 6 + ["mixed"] * 6 + ["other"] * 3 + ["quick"] * 15
    is_slow = [True] * 6 + [True, False] * 3 + [True] * 3 + [False] * 15
    order = slow_first(files, is_slow, 3)
    parts = [[is_slow[position] for position in order[begin : begin + 10]] for begin in (0, 10, 20)]
    assert [sum(part) for part in parts] == [6, 3, 3]
    assert all(part == sorted(part, reverse=True) for part in parts)
