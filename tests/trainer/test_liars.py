"""A selector that lies: it answers what it was not asked, claims what cannot be, or has shown nothing yet."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from support.runs import answer_all, small

from sbpipe.link.messages import Chunk, Departed, Fetch, Heartbeat, Hello, Message, Ready, Reject, Welcome
from sbpipe.records import Lease, Selection, SelectorStats
from sbpipe.runs.events import EventLog
from sbpipe.trainer.engine import Engine
from sbpipe.trainer.serving.claims import MAX_SCORE, possible_selection, possible_stats
from sbpipe.trainer.serving.dispatch import Dispatcher
from sbpipe.trainer.setup import prepare
from sbpipe.trainer.step_outcome import DivergedError


class SilentPort:
    """Notes what is sent; what comes, the test hands to the dispatcher itself."""

    def __init__(self) -> None:
        self.session = bytes(16)
        self.dropped: Counter[str] = Counter()
        self.sent: list[tuple[str, Message]] = []
        self.refused: list[str] = []

    def send(self, peer: str, message: Message) -> bool:
        self.sent.append((peer, message))
        return True

    post = send

    def receive(self, timeout_s: float) -> list[tuple[str, Message]]:
        return []

    def wake(self) -> None: ...

    def refuse(self, peer: str) -> None:
        self.refused.append(peer)

    def release(self, peer: str) -> None: ...

    def close(self) -> None: ...


class Trainer:
    """A dispatcher whose thread does not run, at the time of one clock."""

    def __init__(self, **changes: object) -> None:
        self.port = SilentPort()
        setup = prepare(small(**changes))
        slots = setup.slots()
        self.engine = Engine(setup.job(), self.port, slots, EventLog(None, "trainer"), setup.spans)
        self.engine.begin()
        self.fingerprints = self.engine._reception._fingerprints

    @property
    def dispatcher(self) -> Dispatcher:
        return self.engine._dispatcher

    def says(self, peer: str, message: Message, now: float = 1.0) -> None:
        self.dispatcher._answers.handle(peer, message, now)

    def joins(self, peer: str) -> None:
        self.says(peer, Hello(peer, "host", 1, "cpu", "fp32", "0"), 0.0)
        self.says(peer, Ready(self.fingerprints, True, "fp32"), 0.0)

    def grants(self) -> dict[str, Lease]:
        """What each peer was granted just now."""
        before = len(self.port.sent)
        self.dispatcher._leasing.grant(1.0)
        return {peer: message for peer, message in self.port.sent[before:] if isinstance(message, Lease)}

    def told(self, peer: str, kind: type[Message]) -> list[Message]:
        return [message for name, message in self.port.sent if name == peer and isinstance(message, kind)]


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    trainer = Trainer()
    yield trainer
    trainer.engine.close()


def test_only_the_holder_of_a_lease_may_answer_it(trainer: Trainer) -> None:
    trainer.joins("honest")
    ((holder, lease),) = trainer.grants().items()
    trainer.joins("liar")
    trainer.says("liar", answer_all(lease))
    ledger = trainer.engine.stream.ledger
    assert (holder, ledger.num_selected) == ("honest", 0)
    trainer.says("honest", answer_all(lease))
    assert ledger.num_selected == 1


def test_who_only_said_hello_answers_nothing(trainer: Trainer) -> None:
    trainer.joins("honest")
    (lease,) = trainer.grants().values()
    trainer.says("liar", Hello("liar", "host", 1, "cpu", "fp32", "0"))
    for lease_id in range(lease.lease_id, lease.lease_id + 100):
        trainer.says("liar", answer_all(replace(lease, lease_id=lease_id)))
    assert trainer.engine.stream.ledger.num_selected == 0
    assert list(trainer.engine.stream.ledger.out) == [lease.lease_id]


def test_a_forger_is_turned_out_and_the_honest_peer_is_not(trainer: Trainer) -> None:
    trainer.joins("honest")
    trainer.joins("liar")
    lease = trainer.grants()["honest"]
    for _ in range(3):
        trainer.says("liar", answer_all(replace(lease, lease_id=10_000)))
    assert trainer.port.refused == ["liar"]
    assert "never granted" in trainer.told("liar", Reject)[0].reason  # type: ignore[union-attr]
    assert list(trainer.engine.roster.peers) == ["honest"]
    assert trainer.engine.roster.peers["honest"].strikes == 0


def test_a_lease_counts_once_however_often_it_is_answered(trainer: Trainer) -> None:
    trainer.joins("honest")
    (lease,) = trainer.grants().values()
    for _ in range(50):
        trainer.says("honest", answer_all(lease))
    assert trainer.engine.stream.ledger.num_selected == 1
    assert trainer.engine.totals()["lease.fenced"] == 49
    assert not trainer.port.refused


@pytest.mark.parametrize("is_ready", [False, True])
def test_weights_are_served_to_those_who_are_ready(trainer: Trainer, is_ready: bool) -> None:
    trainer.says("s1", Hello("s1", "host", 1, "cpu", "fp32", "0"))
    if is_ready:
        trainer.joins("s1")
    trainer.says("s1", Fetch(0, 0, 64))
    assert bool(trainer.told("s1", Chunk)) == is_ready
    assert trainer.told("s1", Welcome)


def test_scores_that_are_no_numbers_turn_their_selector_out_and_the_run_goes_on() -> None:
    trainer = Trainer(train__batch_size=128)
    trainer.joins("liar")
    for lease in trainer.grants().values():
        answer = answer_all(lease)
        trainer.says("liar", replace(answer, scores=np.full_like(answer.scores, np.nan)))
    assert "not finite" in trainer.told("liar", Reject)[0].reason  # type: ignore[union-attr]
    assert trainer.port.refused == ["liar"]
    assert not trainer.engine.stream.ledger.out
    trainer.engine.close()


def test_where_nothing_can_go_on_without_scores_the_run_says_that_they_are_no_numbers() -> None:
    trainer = Trainer(mode="lockstep", train__batch_size=128)
    trainer.joins("only")
    ((_, lease),) = trainer.grants().items()
    answer = answer_all(lease)
    with pytest.raises(DivergedError, match="not finite"):
        trainer.says("only", replace(answer, scores=np.full_like(answer.scores, np.nan)))
    trainer.engine.close()


def test_a_peer_that_the_port_gives_up_gives_the_leases_back(trainer: Trainer) -> None:
    trainer.joins("s1")
    assert trainer.grants()
    trainer.says("s1", Departed("its key was revoked"))
    assert not trainer.engine.stream.ledger.out
    assert not trainer.engine.roster.peers


def test_nobody_worked_for_longer_than_it_is_known() -> None:
    claim = SelectorStats(score_s=1e9, slowest_chunk_s=1e9, score_cpu_s=1e9, apply_ms=1e9, idle_s=3.0)
    stats = possible_stats(claim, known_s=9.0)
    assert (stats.score_s, stats.slowest_chunk_s, stats.apply_ms) == (10.0, 10.0, 10_000.0)
    assert (stats.idle_s, stats.transfer_ms) == (3.0, None)
    assert stats.score_cpu_s < 1e9
    assert possible_stats(stats, known_s=9.0) is stats


def test_a_heartbeat_cannot_claim_more_than_the_clock_allows(trainer: Trainer) -> None:
    trainer.joins("liar")
    trainer.says("liar", Heartbeat(1, SelectorStats(slowest_chunk_s=1e9)), now=5.0)
    assert trainer.engine.roster.peers["liar"].stats.slowest_chunk_s == 6.0


def test_scores_are_cut_to_what_can_be_squared_and_no_score_stays_no_score() -> None:
    scores = np.array([1e30, -1e30, np.nan, np.inf, 2.5], np.float32)
    kept = np.array([0], np.int32)
    selection = Selection(1, 0, scores, kept, np.ones(5, np.float32), SelectorStats())
    cut = possible_selection(selection, known_s=1.0).scores
    assert cut[:2].tolist() == [np.float32(MAX_SCORE), np.float32(-MAX_SCORE)]
    assert np.isfinite(np.square(cut[:2])).all()
    np.testing.assert_array_equal(cut[2:], scores[2:])
