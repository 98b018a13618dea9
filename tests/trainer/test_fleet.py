"""Many selectors: leases in proportion to speed, none scored in vain, no more batches ahead than needed."""

import math
from pathlib import Path

import numpy as np
import pytest
from support.runs import answer_all, events_of, small
from support.simulated import SimulatedRun, SimulatedSelector, Stretch

from sbpipe.config import resolve
from sbpipe.records import Lease, Part, Selection
from sbpipe.runs.events import EventLog
from sbpipe.trainer.serving.following import SpeedFollower
from sbpipe.trainer.serving.peers import Peer, Roster
from sbpipe.trainer.stream import fleet
from sbpipe.trainer.stream.pace import Pace
from sbpipe.trainer.stream.stream import Stream

BATCH, KEEP, STEP_S = 128, 0.25, 0.1
DEMAND = BATCH / KEEP


class Starting(SimulatedSelector):
    """Scores with the weights that are out when it begins a lease, as a selector does."""

    stream: Stream
    begun: int | None = None

    def take(self, lease: Lease, now: float) -> None:
        if not self.leases:
            self.begun = self.stream.versions.published
        super().take(lease, now)

    def answer(self, version: int) -> Selection:
        begun, self.begun = self.begun, version
        return super().answer(version if begun is None else begun)


def simulated(count: int, *, capacity: float, policy: str = "spread", uneven: float = 0.5) -> Stretch:
    """A run with so many selectors, which together score `capacity` times what the loop needs."""
    config = resolve({"selection.policy": policy, "selection.keep": KEEP, "train.steps": 10**6})
    speeds = np.random.default_rng(0).uniform(1 - uneven, 1 + uneven, count)
    speeds *= capacity * DEMAND / STEP_S / speeds.sum()
    run = SimulatedRun(config, [], step_s=STEP_S, view_s=0.005, num_examples=10**6)
    for number, speed in enumerate(speeds):
        peer = Peer(str(number), "cpu", is_ready=True)
        one = Starting(peer, speed, config.score_batch_size, config.selection.traits.chooses_sets)
        one.stream = run.stream
        run.selectors.append(one)
    run.run(40)
    return run.run(40)


def planned(
    rates: dict[str, float | None], *, step_s: float | None = STEP_S, is_set: bool = True
) -> fleet.Plan:
    return fleet.plan(batch_size=BATCH, keep=KEEP, rates=rates, step_s=step_s, is_set=is_set)


def test_a_lease_is_in_proportion_to_speed_so_that_all_take_the_same_time() -> None:
    plan = planned({str(k): 100.0 * (1 + k % 3) for k in range(15)})
    times = {round(plan.leases[str(k)] / (100.0 * (1 + k % 3)), 1) for k in range(15)}
    assert len(times) == 1


def test_no_lease_is_shorter_than_a_set_to_choose_from_nor_longer_than_one_selectors_alone() -> None:
    plan = planned({"slow": 1.0, "fast": 10_000.0} | dict.fromkeys("abcdefgh", 500.0))
    assert plan.leases["slow"] == fleet.LEAST
    assert plan.leases["fast"] == DEMAND / 2


def test_who_is_not_measured_yet_counts_as_the_others() -> None:
    plan = planned({"new": None} | dict.fromkeys("abcdefghijklmno", 500.0))
    assert len(set(plan.leases.values())) == 1
    assert planned({"a": None, "b": None}).ahead == 0.0
    assert planned({"a": 100.0, "b": 100.0}, step_s=None).ahead == 0.0


def test_who_was_never_measured_is_given_a_short_lease_alone_and_among_others() -> None:
    stream = Stream(resolve({"selection.keep": KEEP, "train.steps": 10**6}), 10**6)
    stream.versions.offer(Part.WHOLE, 0)
    (_, first), *_ = stream.grant([Peer("alone", "cpu", is_ready=True)])
    assert first.num_candidates <= fleet.LEAST
    assert set(planned({"a": None, "b": None, "c": None}).leases.values()) == {fleet.LEAST}


def test_policies_without_sets_are_given_the_shortest_leases() -> None:
    assert set(planned(dict.fromkeys("abcd", 500.0), is_set=False).leases.values()) == {fleet.LEAST}


@pytest.mark.parametrize("count", [2, 8, 64, 256])
def test_no_more_batches_are_out_than_the_needed_selectors_hold(count: int) -> None:
    needed = planned({str(k): DEMAND / STEP_S / count for k in range(count)})
    fast = planned({str(k): 100 * DEMAND / STEP_S for k in range(count)})
    assert needed.ahead == pytest.approx(min(8.0, sum(needed.leases.values()) / DEMAND))
    assert fast.ahead <= 0.5


@pytest.mark.parametrize("policy", ["spread", "sb"])
@pytest.mark.parametrize("count", [2, 3, 16, 64])
def test_selectors_that_are_just_fast_enough_together_select_every_batch(count: int, policy: str) -> None:
    stretch = simulated(count, capacity=1.25, policy=policy)
    assert stretch.filled < 0.02
    assert stretch.staleness < 1.5 + fleet.MOST_AHEAD


def test_selectors_to_spare_add_no_staleness() -> None:
    assert simulated(64, capacity=20.0).staleness < 2.0


def test_every_candidate_that_is_leased_to_a_fleet_is_considered() -> None:
    stream = Stream(small(train__steps=0, train__epochs=40.0, selection__policy="sb"), 6000)
    stream.versions.offer(Part.WHOLE, 0)
    peers = [Peer(str(k), "cpu", is_ready=True) for k in range(12)]
    stream.is_waiting = True
    leases = [lease for _, lease in stream.grant(peers)]
    assert len(leases) > 1
    assert all(lease.enough == lease.most == lease.num_candidates for lease in leases)
    assert all(lease.history is not None for lease in leases), "each sees few scores: the run's go along"
    for lease in leases:
        assert stream.accept(answer_all(lease)) == ""
    assert stream.ledger.num_considered == sum(lease.num_candidates for lease in leases)


def test_a_depth_of_one_is_not_deepened_by_many_selectors() -> None:
    stream = Stream(small(train__steps=0, train__epochs=40.0, sync__depth=1), 6000)
    stream.versions.offer(Part.WHOLE, 0)
    assert stream.grant([Peer(str(k), "cpu", is_ready=True) for k in range(12)]) == []


def test_a_bound_on_staleness_bounds_what_is_leased_to_a_fleet() -> None:
    settings = {"sync__max_staleness": 3, "train__steps": 0, "train__epochs": 40.0, "train__batch_size": 128}
    stream = Stream(small(**settings), 10**6)
    stream.versions.offer(Part.WHOLE, 0)
    stream.step_s = STEP_S
    peers = [Peer(str(k), "cpu", is_ready=True) for k in range(64)]
    for peer in peers:
        peer.rate = DEMAND / STEP_S / 64
    expected = sum(lease.enough for _, lease in stream.grant(peers))
    assert BATCH < expected <= (3 - 1 + 0.5) * BATCH


def test_useful_selectors_are_as_many_as_may_hold_a_lease() -> None:
    assert fleet.most_useful(batch_size=128, keep=0.25) == 64
    assert fleet.most_useful(batch_size=4096, keep=0.25) == 2048
    assert fleet.most_useful(batch_size=8, keep=1.0) == math.floor(8 * 8 / 4)


@pytest.mark.parametrize(("given", "most"), [("auto", 64), (256, 16)])
def test_keep_follows_as_many_selectors_as_may_hold_a_lease_of_the_given_length(
    given: int | str, most: int, tmp_path: Path
) -> None:
    settings = {"train.batch_size": 128, "train.steps": 1000, "selector.batch_size": given}
    config = resolve(settings | {"selection.keep": "auto"})
    stream, pace, roster = Stream(config, 10**6), Pace(), Roster(lost_after_s=1.0, hung_after_s=1.0)
    stream.keep = KEEP
    for number in range(200):
        roster.add(Peer(str(number), "cpu", is_ready=True))
        roster.peers[str(number)].rate = 5.0 / STEP_S
    for step in range(10):
        pace.started(STEP_S * step, STEP_S * step)
    events = EventLog(tmp_path / "events-trainer.jsonl", "trainer")
    SpeedFollower(config, stream, roster, pace, events).step_done()
    events.close()
    assert [event["selectors"] for event in events_of(tmp_path, "keep")] == [most]
