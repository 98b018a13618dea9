"""Whom to lease how much, by the numbers of one moment: each way of granting by itself, without a stream."""

from dataclasses import replace

import numpy as np
from support.runs import answer_all, small

from sbpipe.config import Config
from sbpipe.data import Order
from sbpipe.records import Lease, Part, Predicted
from sbpipe.trainer.pacing import SyncPace
from sbpipe.trainer.serving.peers import Peer
from sbpipe.trainer.stream.clocked import Clocked
from sbpipe.trainer.stream.doubts import Doubt
from sbpipe.trainer.stream.leases import Leases
from sbpipe.trainer.stream.ledger import Ledger
from sbpipe.trainer.stream.moment import Moment
from sbpipe.trainer.stream.pipelined import Pipelined
from sbpipe.trainer.stream.predictions import Predictions
from sbpipe.trainer.stream.scores import ScoreTable
from sbpipe.trainer.stream.shares import Shares
from sbpipe.trainer.stream.steered import Steered
from sbpipe.trainer.stream.stretches import Stretches
from sbpipe.trainer.stream.versions import Versions
from sbpipe.trainer.stream.yields import Yield

NOW = Moment(
    batch_size=16,
    num_assembled=1,
    num_started=1,
    steps_done=0,
    leftover=0,
    is_waiting=False,
    keep=0.25,
    step_s=None,
    ahead=0.0,
)
"""A loop that trains its first batch, and has nothing on hand for the second one."""


class Line:
    """A line of candidates, and all that grants from it."""

    def __init__(self, config: Config, num_examples: int = 6000) -> None:
        sync, steered = SyncPace.of(config), Steered(config)
        self.ledger, yielded = Ledger(num_examples, None), Yield(config, num_examples)
        self.versions = Versions(config, sync)
        self.versions.offer(Part.WHOLE, 0)
        order, table = Order.of(config, num_examples), ScoreTable(num_examples, 64)
        self.leases = Leases(config, self.ledger, order, table, Stretches(config, None), yielded, steered)
        self.clocked = Clocked(config, self.ledger, self.versions, self.leases)
        self.pipelined = Pipelined(config, sync, self.ledger, self.versions, yielded, self.leases)
        self.shares = Shares(config, sync, self.ledger, self.versions, yielded, self.leases)


def peer(name: str = "a", rate: float | None = 1000.0) -> Peer:
    made = Peer(name, "cpu", is_ready=True)
    made.rate = rate
    return made


def test_one_selector_is_leased_what_the_next_batch_lacks() -> None:
    ((_, lease),) = Line(small()).pipelined.grant(peer(), NOW)
    assert (lease.enough, lease.num_candidates) == (16, 64)
    ((_, lease),) = Line(small()).pipelined.grant(peer(), NOW._replace(leftover=10))
    assert lease.enough == 6


def test_nothing_is_leased_while_a_whole_batch_is_on_hand() -> None:
    assert Line(small()).pipelined.grant(peer(), NOW._replace(num_assembled=2)) == []


def test_a_selector_that_batches_are_selected_ahead_with_gets_two_leases_of_half_a_batch() -> None:
    line = Line(small())
    granted = line.pipelined.grant(peer(), NOW._replace(ahead=0.5))
    assert [lease.enough for _, lease in granted] == [8, 8]
    assert line.pipelined.grant(peer(), NOW._replace(ahead=1.0)) == [], "it holds two already"


def test_under_a_clock_one_lease_is_out_at_a_time_and_one_selector_does_all_the_work() -> None:
    line, a, b = Line(small(mode="lockstep")), peer("a"), peer("b")
    now = NOW._replace(num_assembled=0, num_started=0)
    ((first, lease),) = line.clocked.grant([a, b], now)
    assert (first, lease.exact, lease.enough) == (a, True, 16)
    assert line.clocked.grant([a, b], now) == []
    line.ledger.expire(lease.lease_id)
    ((second, again),) = line.clocked.grant([b], now)
    assert (second, again.start, again.history is not None) == (b, lease.start, True)


def test_under_a_clock_a_batch_waits_until_its_weights_are_out() -> None:
    line = Line(small(mode="lockstep"))
    assert line.clocked.versions_of_next(NOW) is None, "the step before it is not done"
    assert line.clocked.versions_of_next(NOW._replace(steps_done=1)) is None, "version 1 is not out"
    line.versions.offer(Part.WHOLE, 1)
    assert line.clocked.versions_of_next(NOW._replace(steps_done=1)) == (1, -1)


def test_many_selectors_are_leased_by_what_each_of_them_scores() -> None:
    crew = [peer("slow", 100.0), peer("fast", 1500.0)]
    granted = Line(small()).shares.grant(crew, NOW._replace(batch_size=256, step_s=0.5))
    lengths = {peer.name: lease.num_candidates for peer, lease in granted}
    assert granted[0][0].name == "fast", "who is fast is asked first"
    assert lengths["slow"] < lengths["fast"]


def test_a_lease_goes_by_what_was_said_as_many_steps_before_its_batch_as_the_lag_is() -> None:
    def said(config: Config, now: Moment) -> tuple[float, Doubt | None]:
        steered = Steered(config)
        steered.begin(0, 0.0)
        for step in (1, 2, 3):
            steered.note(step, step / 10, None)
        return steered.at(now)

    assert said(small(), NOW._replace(steps_done=3)) == (0.3, None)
    late = small(mode="fixed-lag", sync__lag=2)
    assert said(late, NOW._replace(steps_done=3, num_assembled=3)) == (0.1, None)


def test_predictions_are_taken_once_and_not_before_their_batch() -> None:
    lease = Lease(0, 0, 0, 4, 4, 4, 0)
    counts = np.array([3, 1], np.int32)
    answered = answer_all(lease)
    predicted = Predictions()
    predicted.note(0, answered)
    assert predicted.take(5) == [], "it did not say what it predicted"
    for number in (1, 2):
        predicted.note(number, replace(answered, predicted=counts))
    again = Predictions()
    again.restore(predicted.state())
    for one in (predicted, again):
        (taken,) = one.take(1)
        assert isinstance(taken, Predicted)
        assert taken.by_class.tolist() == [3, 1]
        assert len(one.take(9)) == 1
        assert one.take(9) == []
