"""Every candidate of an epoch is considered exactly once, whatever dies."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpipe.records import Lease
from sbpipe.trainer.serving.peers import Peer
from sbpipe.trainer.stream.ledger import Grant, Ledger


def grant(ledger: Ledger, count: int = 10, most: int = 10) -> Grant | None:
    """Put out a lease of the next candidates."""
    places = ledger.reach(count)
    if places is None:
        return None
    lease = Lease(ledger.next_lease_id, 0, 0, count, enough=most, most=most, version=0)
    ledger.grant(Grant(lease, "a", *places, expected_kept=count / 3))
    return ledger.out[lease.lease_id]


def granted(ledger: Ledger, most: int = 10) -> Grant:
    """The same where candidates are left."""
    found = grant(ledger, most=most)
    assert found is not None
    return found


@settings(deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 120),
    st.lists(st.tuples(st.sampled_from("gsxr"), st.integers(1, 17)), max_size=120),
)
def test_every_place_is_considered_exactly_once(
    num_examples: int, limit: int, moves: list[tuple[str, int]]
) -> None:
    ledger, seen = Ledger(num_examples, limit), []
    for move, number in [*moves, *[("g", 7), ("s", 99)] * (2 * limit)]:
        out = list(ledger.out.values())
        if move == "g":
            given_out = grant(ledger, number)
            assert (
                given_out is None or given_out.first // num_examples == (given_out.last - 1) // num_examples
            )
        elif move == "s" and out:
            considered = min(number, out[-1].last - out[-1].first)
            assert ledger.select(out[-1].lease.lease_id, considered, 0) is not None
            seen += range(out[-1].first, out[-1].first + considered)
        elif move == "x" and out:
            ledger.expire(out[0].lease.lease_id)
        elif move == "r":
            again = Ledger(num_examples, limit)
            again.restore(ledger.state())
            ledger = again
        expected = sum(each.expected_kept for each in ledger.out.values())
        assert ledger.expected_kept == pytest.approx(expected, abs=1e-9)
    assert ledger.expected_kept == 0.0
    assert sorted(seen) == list(range(limit))
    assert ledger.is_exhausted
    assert ledger.num_considered == limit


def test_an_expired_lease_is_fenced_by_its_id() -> None:
    ledger = Ledger(100, 100)
    first = granted(ledger)
    ledger.expire(first.lease.lease_id)
    again = granted(ledger)
    assert (again.first, again.last) == (first.first, first.last)
    assert ledger.select(first.lease.lease_id, 10, 3) is None
    assert ledger.select(again.lease.lease_id, 10, 3) is again


def test_an_answer_counts_once() -> None:
    ledger = Ledger(100, 100)
    lease = granted(ledger)
    assert ledger.select(lease.lease.lease_id, 10, 3) is not None
    assert ledger.select(lease.lease.lease_id, 10, 3) is None
    assert ledger.num_considered == 10


def test_an_answer_longer_than_its_lease_is_refused() -> None:
    ledger = Ledger(100, 100)
    lease = granted(ledger, most=4)
    assert ledger.select(lease.lease.lease_id, 11, 3) is None
    assert ledger.select(lease.lease.lease_id, 10, 5) is None
    assert ledger.select(lease.lease.lease_id, 0, 0) is None
    assert lease.lease.lease_id in ledger.out


def test_a_lease_is_trained_with_its_last_kept_example_and_not_before() -> None:
    ledger = Ledger(100, 100)
    lease = granted(ledger)
    ledger.select(lease.lease.lease_id, 10, 3)
    ledger.train(lease.lease.lease_id, 2)
    assert ledger.num_trained == 0
    ledger.train(lease.lease.lease_id, 1)
    assert ledger.num_trained == 1


def test_what_a_cut_lease_did_not_consider_is_granted_next() -> None:
    ledger = Ledger(100, 100)
    first = granted(ledger)
    second = granted(ledger)
    ledger.select(first.lease.lease_id, 4, 1)
    rest = granted(ledger)
    assert (rest.first, rest.last) == (4, 10)
    assert second.first == 10


def test_those_with_room_come_idle_first_and_once_even_if_they_are_granted_one_meanwhile() -> None:
    ledger, peers = Ledger(1000, None), [Peer(name, "cpu") for name in "abcd"]

    def put_out(name: str) -> None:
        places = ledger.reach(10)
        assert places is not None
        lease = Lease(ledger.next_lease_id, 0, 0, 10, enough=1, most=1, version=0)
        ledger.grant(Grant(lease, name, *places, expected_kept=1.0))

    for name in "aac":
        put_out(name)
    seen = []
    for peer in ledger.with_room(peers, 2):
        seen.append(peer.name)
        put_out(peer.name)
    assert seen == ["b", "d", "c"]
