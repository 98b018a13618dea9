import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpipe.data import Order

SEEDS = st.integers(0, 2**40)


@given(st.integers(1, 3000), SEEDS, st.integers(0, 10**6))
def test_an_epoch_holds_every_example_exactly_once(num_examples: int, seed: int, epoch: int) -> None:
    example_ids = Order(num_examples, seed).ids(epoch, 0, num_examples)
    assert np.array_equal(np.sort(example_ids), np.arange(num_examples))


@given(st.integers(1, 2**62), SEEDS, st.data())
def test_any_range_of_any_size_gives_distinct_ids_of_the_data_set(
    num_examples: int, seed: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, num_examples - 1))
    stop = min(start + 100, num_examples)
    example_ids = Order(num_examples, seed).ids(3, start, stop)
    assert len(set(example_ids.tolist())) == stop - start
    assert example_ids.min() >= 0
    assert example_ids.max() < num_examples


@given(st.integers(2, 500), st.data())
def test_a_range_is_a_part_of_the_whole_order(num_examples: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, num_examples))
    stop = data.draw(st.integers(start, num_examples))
    order = Order(num_examples, seed=7)
    assert np.array_equal(order.ids(1, start, stop), order.ids(1, 0, num_examples)[start:stop])


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [tuple(Order(1000, seed).ids(epoch, 0, 1000)) for seed in range(5) for epoch in range(5)]
    assert len(set(orders)) == 25


def test_the_order_is_the_same_in_every_process_and_version() -> None:
    assert Order(10, seed=0).ids(0, 0, 10).tolist() == [6, 7, 3, 1, 5, 4, 0, 9, 8, 2]


@pytest.mark.parametrize("num_examples", [2, 3, 5, 8, 13])
def test_every_example_is_equally_likely_at_every_position(num_examples: int) -> None:
    counts = np.zeros((num_examples, num_examples))
    for seed in range(1500):
        counts[np.arange(num_examples), Order(num_examples, seed).ids(0, 0, num_examples)] += 1
    expected = 1500 / num_examples
    chi_square, freedom = ((counts - expected) ** 2 / expected).sum(), (num_examples - 1) ** 2
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


def test_neighbours_in_the_order_are_strangers_in_the_data_set() -> None:
    example_ids = Order(50_000, seed=1).ids(0, 0, 50_000)
    assert abs(np.corrcoef(example_ids[:-1], example_ids[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(np.arange(50_000), example_ids)[0, 1]) < 0.02


def test_a_lease_of_a_billion_examples_costs_no_more_than_one_of_a_few() -> None:
    tracemalloc.start()
    found = Order(10**9, seed=0).ids(0, 5 * 10**8, 5 * 10**8 + 384)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(set(found)) == 384
    assert most_bytes < 10**6


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 11)])
def test_positions_outside_the_order_are_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="not a range of an order of 10 examples"):
        Order(10, seed=0).ids(0, start, stop)


@pytest.mark.parametrize("num_examples", [0, -1, 2**62 + 1])
def test_sizes_that_have_no_order_are_refused(num_examples: int) -> None:
    with pytest.raises(ValueError, match="1 to 2\\^62 examples"):
        Order(num_examples, seed=0)
