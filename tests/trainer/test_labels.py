"""Wrong labels are found by where the model ranks them, and turn selection uniform, with a reason."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.runs import events_of, small, train_inline, train_over, train_over_the_wire

from sbpipe.config import Config, resolve
from sbpipe.link.faults import FaultyPort
from sbpipe.records import Lease, Part, Predicted, Selection, TrainBatch
from sbpipe.runs.events import EventLog
from sbpipe.scoring.places import places_of
from sbpipe.trainer.serving.peers import Peer
from sbpipe.trainer.steering.labels import (
    CANDIDATES,
    CLOSING,
    Estimate,
    LabelTrust,
    estimate,
    evident,
    is_blind,
    trusted,
)
from sbpipe.trainer.steering.steering import Steering
from sbpipe.trainer.steering.trust import LEARNING, Trust
from sbpipe.trainer.step_outcome import StepOutcome
from sbpipe.trainer.stream.doubts import Doubt
from sbpipe.trainer.stream.fallback import Fallback
from sbpipe.trainer.stream.fill import MOST_PASSES, Filler
from sbpipe.trainer.stream.stream import Stream


@pytest.mark.parametrize(
    ("by_place", "wrong", "knowledge"),
    [
        # Flat behind the first place: 3 x 10 % are wrong, and all that is right is known.
        ([70, 10, 10, 10], 0.3, 1.0),
        # It falls by more than half from place to place: hard examples.
        ([70, 20, 8, 2], 0.0, 0.6),
        # Flat altogether: the model knows nothing.
        ([25, 25, 25, 25], 0.75, 0.0),
        # Nothing was counted.
        ([0, 0, 0, 0], 0.0, -1 / 3),
    ],
)
def test_the_estimate_of_four_numbers(by_place: list[int], wrong: float, knowledge: float) -> None:
    assert estimate(np.array(by_place), 0.25) == pytest.approx((wrong, knowledge))


def test_trust_falls_with_wrong_labels_that_the_model_knows_enough_to_tell() -> None:
    assert [trusted(wrong) for wrong in (0.0, 0.08, 0.16, 0.6)] == [1.0, 1.0, 0.0, 0.0]
    assert trusted(0.12) == pytest.approx(0.5)
    assert [evident(Estimate(0.4, knowledge)) for knowledge in (0.1, 0.35, 0.55, 0.9)] == [0.0, 0.0, 0.4, 0.4]


def test_a_model_that_scores_far_above_fresh_losses_is_blind_and_one_that_scored_nothing_too() -> None:
    losses, unscored = np.ones(4, np.float32), np.full(4, np.nan, np.float32)
    assert not is_blind(1.2 * losses, losses)
    assert is_blind(1.3 * losses, losses)
    assert is_blind(unscored, losses)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=5, max_size=40), st.floats(0.02, 1.0))
def test_whatever_is_counted_the_estimate_is_a_share_and_trust_too(
    by_place: list[int], largest_class: float
) -> None:
    found = estimate(np.array(by_place), largest_class)
    assert 0.0 <= found.wrong <= 1.0
    assert 0.0 <= trusted(evident(found)) <= 1.0


def test_places_are_those_of_a_slow_reference() -> None:
    outputs = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(50) % 7
    found, are_places = places_of(outputs, targets)
    assert are_places
    for row, target, place in zip(outputs.tolist(), targets.tolist(), found.tolist(), strict=True):
        assert sorted(row, reverse=True).index(row[target]) == place
    _, are_places = places_of(outputs, targets + 1)
    assert not are_places


class Candidates:
    """Places of labels under a model that is unsure between similar classes, of which a share is wrong."""

    def __init__(self, num_classes: int = 10) -> None:
        self._classes, self._rng = num_classes, np.random.default_rng(0)

    def count(self, wrong: float, *, is_right: float = 0.95, number: int = 512) -> NDArray[np.int32]:
        # Of right labels a share stands first, and of the rest each place holds half of the one before.
        near = np.minimum(self._rng.geometric(0.5, number), self._classes - 1)
        right = np.where(self._rng.random(number) < is_right, 0, near)
        anywhere = self._rng.integers(1, self._classes, number)
        places = np.where(self._rng.random(number) < wrong, anywhere, right)
        return np.bincount(places, minlength=self._classes).astype(np.int32)

    def feed(self, trust: LabelTrust, steps: int, wrong: float, *, is_right: float = 0.95) -> list[float]:
        factors = []
        for _ in range(steps):
            trust.observe(self.count(wrong, is_right=is_right), 0.1)
            factors.append(trust.factor)
        return factors


@pytest.mark.parametrize("wrong", [0.0, 0.1, 0.2, 0.4, 0.6])
def test_the_share_of_wrong_labels_is_found_and_never_too_high_where_examples_are_hard(wrong: float) -> None:
    candidates = Candidates()
    assert estimate(candidates.count(wrong, is_right=0.95, number=100_000), 0.1).wrong == pytest.approx(
        wrong, abs=0.02
    )
    assert estimate(candidates.count(wrong, is_right=0.5, number=100_000), 0.1).wrong < wrong + 0.02


def test_right_labels_leave_selection_alone_to_the_bit_also_where_most_examples_are_hard() -> None:
    for is_right in (0.15, 0.4, 0.6, 0.9):
        trust = LabelTrust()
        assert set(Candidates().feed(trust, 200, 0.0, is_right=is_right)) == {1.0}
        assert trust.reason == ""


def test_a_model_that_ranks_anything_anywhere_leaves_it_alone() -> None:
    trust = LabelTrust()
    for _ in range(100):
        trust.observe(np.full(10, 51, np.int32), 0.1)
    assert (trust.factor, trust.wrong) == (1.0, None)


def test_many_wrong_labels_turn_it_uniform_smoothly() -> None:
    trust = LabelTrust()
    factors = Candidates().feed(trust, 120, 0.4)
    assert factors[: CANDIDATES // 512 - 1] == [1.0] * (CANDIDATES // 512 - 1)
    assert factors[-1] == 0.0
    assert -np.diff(factors).min() <= CLOSING + 1e-9
    assert re.fullmatch(r"at least (3[5-9]|4[0-5]) % look wrong", trust.reason)


def test_some_wrong_labels_turn_it_uniform_in_part_and_it_does_not_swing() -> None:
    factors = Candidates().feed(LabelTrust(), 300, 0.1)
    assert 0.2 < factors[-1] < 0.9
    assert np.diff(factors).max() <= 0.0


def test_labels_that_are_learnt_by_heart_stay_wrong() -> None:
    trust, candidates = LabelTrust(), Candidates()
    candidates.feed(trust, 120, 0.4)
    assert candidates.feed(trust, 200, 0.0)[-1] == 0.0
    assert trust.wrong == pytest.approx(0.4, abs=0.05)


def test_of_four_classes_nothing_is_said() -> None:
    trust = LabelTrust()
    for _ in range(60):
        trust.observe(np.array([300, 70, 70, 72], np.int32), 0.25)
    assert (trust.factor, trust.wrong) == (1.0, None)


def test_nothing_is_judged_while_the_model_that_scores_is_blind() -> None:
    candidates, losses = Candidates(), np.linspace(0.5, 2.0, 8, dtype=np.float32)
    for factor, is_judged in ((2.0, False), (1.0, True)):
        trust = Trust(0.1)
        for _ in range(LEARNING + 40):
            told = Predicted(np.full(10, 51, np.int32), candidates.count(0.4))
            trust.observe(factor * losses, losses, np.ones(8, np.float32), [told])
        assert (trust.labels.factor < 1.0) == is_judged


def test_it_goes_on_from_a_checkpoint_as_if_nothing_had_happened() -> None:
    whole, first, second = Trust(0.1), Trust(0.1), Trust(0.1)
    told = [Predicted(np.full(10, 51, np.int32), Candidates().count(0.4)) for _ in range(LEARNING + 60)]
    for trust, part in ((whole, told), (first, told[:70])):
        for one in part:
            trust.observe(np.arange(8, dtype=np.float32), np.arange(8, dtype=np.float32), np.ones(8), [one])
    second.restore(first.state())
    assert 0.0 < second.labels.factor < 1.0
    for one in told[70:]:
        second.observe(np.arange(8, dtype=np.float32), np.arange(8, dtype=np.float32), np.ones(8), [one])
    assert second.labels.factor == whole.labels.factor
    assert second.state() == whole.state()


def steering_after(wrong: float, **given: object) -> Steering:
    """Steering once a share of the labels has been seen to be wrong."""
    config = resolve({key.replace("__", "."): value for key, value in given.items()})
    steering, candidates = Steering(config, np.arange(100) % 10, EventLog(None, "trainer")), Candidates()
    losses, ids, nobody = torch.linspace(0.5, 2.0, 8), np.arange(8), np.zeros(8, bool)
    for step in range(LEARNING + 40):
        chances = np.full(8, 0.25, np.float32)
        batch = TrainBatch(step, ids, 0 * ids, losses.numpy(), chances, 0 * ids, 0 * ids, 0, chances, nobody)
        told = Predicted(np.full(10, 51, np.int32), candidates.count(wrong))
        steering.observe(StepOutcome(batch, losses, torch.empty(0), lambda *_: []), [told])
    return steering


@pytest.mark.parametrize("trust", [True, False])
def test_labels_look_wrong_also_where_nothing_is_done_about_it(trust: bool) -> None:
    steering = steering_after(0.4, selection__trust=trust)
    assert steering.terms.labels_look_wrong, "and the keep rate goes no lower for them"
    assert (steering.doubt is not None) == trust
    assert not steering_after(0.0, selection__trust=trust).terms.labels_look_wrong


def write_pictures(path: Path) -> None:
    """Ten classes, each a bright column of its own in noise: learnt within a few dozen steps."""
    rng, arrays = np.random.default_rng(0), {}
    for part, count in (("train", 16_384), ("test", 200)):
        labels = np.arange(count) % 10
        pictures = rng.integers(0, 100, (count, 10, 10, 1), dtype=np.uint8)
        pictures[np.arange(count), :, labels] += 120
        arrays |= {f"x_{part}": pictures, f"y_{part}": labels}
    np.savez(path, **arrays)


def mislabelled(folder: Path, wrong: float, **changes: object) -> Config:
    """A run over 2.5 epochs of such pictures, with wrong labels."""
    write_pictures(folder / "pictures.npz")
    return small(
        train__steps=80,
        train__batch_size=128,
        selection__keep=0.25,
        model__options={"width": 4},
        selection__guard=False,
        optim__lr=0.1,
        data__name="arrays",
        data__path=str(folder / "pictures.npz"),
        data__label_noise=wrong,
        **changes,
    )


@pytest.mark.parametrize(("policy", "wrong"), [("spread", 0.4), ("spread", 0.0), ("shuffled", 0.4)])
def test_a_run_with_many_wrong_labels_passes_them_over_and_says_why_and_a_clean_one_does_not(
    policy: str, wrong: float, run_path: Path, tmp_path: Path
) -> None:
    config = mislabelled(tmp_path, wrong, mode="inline", selection__policy=policy)
    summary, steps = train_inline(config, run_path), events_of(run_path, "step")
    told = [event["text"] for event in events_of(run_path, "warning") if "labels" in event["text"]]
    if not wrong:
        assert {step["label_trust"] for step in steps} == {1.0}
        assert {step["strength"] for step in steps} == {1.0}
        assert (told, summary["selection.label_doubt"]) == ([], None)
        assert (summary["selection.passed_over"], events_of(run_path, "passing over")) == (0, [])
        return
    assert steps[-1]["label_trust"] < 0.8
    assert 0.15 < steps[-1]["wrong_labels"] < wrong + 0.05
    assert len(told) == 1
    assert "look wrong" in summary["selection.label_doubt"]
    assert "of the labels look wrong" in summary["verdict.headline"]
    if policy == "spread":
        assert steps[-1]["strength"] == 1.0, "last scores tell which are wrong"
        assert "the more uniformly candidates are chosen" in told[0]
        assert "no sign of being worse than random selection (" in summary["verdict.headline"]
        assert len(events_of(run_path, "passing over")) == 1
        assert summary["selection.passed_over"] > 500
        assert "were passed over" in summary["verdict.headline"]
    else:
        assert summary["selection.passed_over"] == 0
        assert "goes by its scores all the same" in told[0]
        assert "perhaps worse" in summary["verdict.headline"]


def test_a_plug_in_that_gives_cross_entropy_is_known_for_it(
    run_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain_entropy.py").write_text(
        "from torch.nn import functional\n"
        "def loss(outputs, targets):\n"
        "    return functional.cross_entropy(outputs, targets.long(), reduction='none')\n"
    )
    monkeypatch.chdir(tmp_path)
    config = mislabelled(
        tmp_path, 0.4, mode="inline", selection__policy="spread", loss__name="plain_entropy:loss"
    )
    summary = train_inline(config, run_path)
    assert summary["selection.passed_over"] > 500
    assert 0.0 < summary["worth.ess"] < 1.0


@pytest.mark.slow
def test_passing_over_is_the_same_in_two_processes_and_under_a_lag_whatever_the_timing(
    tmp_path: Path,
) -> None:
    found = {}
    for name, train, mode in (
        ("one", train_inline, "inline"),
        ("two", train_over_the_wire, "lockstep"),
        ("lag", train_over, "fixed-lag"),
        ("late", partial(train_over, wrap=lambda port: FaultyPort(port, 1, delay=0.3)), "fixed-lag"),
    ):
        config = mislabelled(tmp_path, 0.4, mode=mode, selection__policy="spread", link__heartbeat_s=0.05)
        summary = train(config, tmp_path / name)
        assert summary["selection.passed_over"] > 500
        found[name] = summary["weights.digest"], summary["selection.passed_over"]
    assert found["one"] == found["two"]
    assert found["lag"] == found["late"]


# --- what a lease says of it ----------------------------------------------------------------------


def known(lag: int) -> tuple[Stream, Peer]:
    """A stream in its second epoch, in whose first one every third example had a score of a wrong label."""
    given = {"mode": "fixed-lag", "sync.lag": lag} if lag else {"mode": "inline"}
    config = resolve({"train.batch_size": 16, "selection.keep": 0.25, "train.epochs": 9.0, **given})
    stream, peer = Stream(config, 64), Peer("a", "cpu", is_ready=True)
    stream.versions.offer(Part.WHOLE, 0)
    answer_next(stream, peer, np.arange(64) % 3 == 0)
    return stream, peer


def answer_next(stream: Stream, peer: Peer, is_high: NDArray[np.bool_]) -> Lease:
    """Grant the next lease and answer it with scores above 2 where `is_high` says so, by example id."""
    ((_, lease),) = stream.grant([peer])
    example_ids = stream.order.ids(lease.epoch, lease.start, lease.stop)
    scores = np.where(is_high[example_ids], 3.0, 1.0).astype(np.float32)
    chances = np.full(len(scores), 0.25, np.float32)
    kept = np.arange(lease.enough, dtype=np.int32)
    assert stream.accept(Selection(lease.lease_id, lease.version, scores, kept, chances)) == ""
    return lease


def doubted_in(stream: Stream, lease: Lease) -> list[int]:
    assert lease.doubted is not None
    bits = np.unpackbits(lease.doubted, count=lease.num_candidates).astype(bool)
    return sorted(stream.order.ids(lease.epoch, lease.start, lease.stop)[bits].tolist())


def finish(stream: Stream, strength: float, doubt: Doubt | None) -> None:
    stream.ready.popleft()
    stream.start()
    stream.finish_step(strength, doubt)
    stream.versions.offer(Part.WHOLE, stream.steps_done)


def test_a_lease_names_those_whose_last_score_was_high_and_chooses_sharply_again() -> None:
    stream, peer = known(0)
    finish(stream, 0.1, Doubt(0.8, 2.0))
    lease = answer_next(stream, peer, np.arange(64) % 6 == 0)
    assert doubted_in(stream, lease) == list(range(0, 64, 3))
    assert (lease.strength, lease.doubt_above) == (pytest.approx(0.8), 2.0)
    assert stream.num_passed_over == len(range(0, 64, 6)), "who is doubted and high again"


def test_in_the_first_epoch_nobody_is_doubted_and_selection_stays_as_uniform_as_labels_ask() -> None:
    config = resolve({"mode": "inline", "train.batch_size": 16, "selection.keep": 0.25})
    stream = Stream(config, 640)
    stream.versions.offer(Part.WHOLE, 0)
    answer_next(stream, Peer("a", "cpu", is_ready=True), np.ones(640, bool))
    finish(stream, 0.1, Doubt(0.8, 2.0))
    lease = answer_next(stream, Peer("a", "cpu", is_ready=True), np.ones(640, bool))
    assert (lease.doubted, lease.strength) == (None, pytest.approx(0.1))


def test_under_a_lag_a_lease_goes_by_what_was_known_so_many_steps_before() -> None:
    stream, peer = known(2)
    answer_next(stream, peer, np.arange(64) % 3 == 0)
    answer_next(stream, peer, np.arange(64) % 3 == 0)
    finish(stream, 0.1, Doubt(0.8, 2.0))
    lease = answer_next(stream, peer, np.arange(64) % 3 == 0)
    assert doubted_in(stream, lease) == list(range(0, 64, 3))
    again = Stream(resolve({"mode": "fixed-lag", "sync.lag": 2, "train.batch_size": 16}), 64)
    again.restore(stream.state())
    assert again.state()["doubts"] == stream.state()["doubts"]
    assert again.num_passed_over == stream.num_passed_over


def filled_beside(last_scores: NDArray[np.float32]) -> tuple[Stream, Filler]:
    """A stream without an end and without a selector, whose first batch was trained: now these were the last
    scores, and labels are doubted.
    """
    config = small(selection__late="fill", train__steps=10**6, train__batch_size=16)
    stream = Stream(config, 64)
    stream.versions.offer(Part.WHOLE, 0)
    filler = Filler(stream, Fallback(config, stream.order, stream.table))
    nobody = np.empty(0, np.int32)
    stream.table.record(np.arange(64), Selection(0, 0, last_scores, nobody, np.ones(64, np.float32)))
    filler.fill()
    finish(stream, 0.1, Doubt(0.8, 2.0))
    return stream, filler


def test_a_fill_passes_over_the_doubted_too() -> None:
    stream, filler = filled_beside(np.where(np.arange(64) % 3, 1.0, 3.0).astype(np.float32))
    filler.fill()
    assert stream.ready[0].is_fill.all()
    assert (stream.ready[0].example_ids % 3).all()


def test_a_fill_ends_where_every_candidate_is_doubted() -> None:
    stream, filler = filled_beside(np.full(64, 3.0, np.float32))
    before, rate = stream.ledger.num_considered, stream.keep
    assert filler.fill() == 16
    assert stream.ledger.num_considered - before <= (MOST_PASSES + 1) * 16 / rate
    assert stream.ready[0].is_fill.all()
