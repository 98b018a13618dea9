"""The loop never waits: a train batch that is late is filled from the line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as testing
from hypothesis import strategies as st
from support.runs import (
    HANG_S,
    Forked,
    answer_all,
    events_of,
    settings,
    small,
    summary_of,
    train_over,
)

from sbpipe.config import Config
from sbpipe.errors import PeerLost
from sbpipe.link.faults import FaultyPort
from sbpipe.link.ports import Port
from sbpipe.records import Part, TrainBatch
from sbpipe.trainer.serving.peers import Peer
from sbpipe.trainer.steering.fresh import FreshWeights
from sbpipe.trainer.stream.fallback import Fallback
from sbpipe.trainer.stream.fill import Filler
from sbpipe.trainer.stream.stream import Stream


def filling(**changes: Any) -> Config:
    return small(selection__late="fill", **changes)


def stream_of(config: Config, num_examples: int = 600) -> tuple[Stream, Filler]:
    stream = Stream(config, num_examples)
    stream.versions.offer(Part.WHOLE, 0)
    return stream, Filler(stream, Fallback(config, stream.order, stream.table))


def train(stream: Stream) -> TrainBatch:
    """Train the next batch."""
    batch = stream.ready.popleft()
    stream.start()
    stream.finish_step()
    stream.versions.offer(Part.WHOLE, stream.steps_done)
    return batch


# --- what a fill is made of -----------------------------------------------------------------------


def test_a_batch_without_any_selection_is_the_next_candidates_of_the_line() -> None:
    stream, filler = stream_of(filling(train__steps=0, train__epochs=2.0, selection__keep=0.25))
    assert filler.fill() == 16
    batch = train(stream)
    assert batch.example_ids.tolist() == stream.order.ids(0, 0, 16).tolist()
    assert batch.is_fill.all()
    assert np.isnan(batch.scores).all()
    assert set(batch.keep_probability.tolist()) == {0.25}
    assert stream.ledger.num_considered == 16


def test_only_what_is_missing_is_filled_and_the_late_answer_goes_into_the_next_batch() -> None:
    stream, filler = stream_of(filling(train__steps=0, train__epochs=2.0))
    peer = Peer("a", "cpu", is_ready=True)
    stream.ahead = 0.5
    leases = [lease for _, lease in stream.grant([peer])]
    assert len(leases) == 2, "the selector finds its next lease when it has answered the first"
    stream.accept(answer_all(leases[0]))
    on_hand = stream.leftover
    assert 0 < on_hand < 16
    assert filler.fill() == 16 - on_hand
    batch = train(stream)
    assert batch.is_fill.tolist() == [False] * on_hand + [True] * (16 - on_hand)
    assert stream.accept(answer_all(leases[1])) == ""
    assert stream.leftover > 0


def test_a_fill_goes_on_behind_the_end_of_an_epoch() -> None:
    stream, filler = stream_of(filling(train__steps=0, train__epochs=2.0), num_examples=20)
    filler.fill()
    train(stream)
    assert filler.fill() == 16
    assert train(stream).epochs.tolist() == [0] * 4 + [1] * 12


def test_at_the_end_of_the_line_what_a_selector_still_holds_is_taken_back() -> None:
    stream, filler = stream_of(filling(train__steps=0, train__epochs=1.0), num_examples=64)
    ((_, lease),) = stream.grant([Peer("a", "cpu", is_ready=True)])
    while not stream.is_finished:
        assert filler.fill() == 16
        train(stream)
    assert stream.steps_done == 4
    assert stream.ledger.num_considered == 64
    assert stream.accept(answer_all(lease)) == "the lease is not out"
    assert stream.ledger.num_expired == 0, "by nobody's fault"
    assert lease.lease_id in filler.taken_back


def scored(config: Config) -> tuple[Stream, Filler]:
    """A stream whose first epoch was answered by a selector: scores are 0, 1, 2, ... along each lease."""
    stream, filler = stream_of(config, num_examples=96)
    peer = Peer("a", "cpu", is_ready=True)
    while stream.ledger.num_considered < 96:
        stream.is_waiting = True
        for _, lease in stream.grant([peer]):
            stream.accept(answer_all(lease))
        while stream.ready:
            train(stream)
    return stream, filler


def test_where_the_table_knows_recent_scores_a_fill_is_chosen_by_them() -> None:
    stream, filler = scored(
        filling(train__steps=0, train__epochs=9.0, selection__policy="topk", selection__keep=0.25)
    )
    before = stream.ledger.num_considered
    need = 16 - stream.leftover
    assert filler.fill() == need
    assert stream.ledger.num_considered - before > 2 * need, "others were considered and not kept"
    batch = train(stream)
    assert np.isnan(batch.scores[batch.is_fill]).all(), "old scores are not told as if they were new"


def test_a_fill_ends_where_all_scores_are_alike_and_the_policy_keeps_nobody() -> None:
    stream, filler = scored(filling(train__steps=10**6, selection__policy="sb", selection__keep=0.25))
    stream.table.settle()
    stream.table.scores[:] = stream.table.recent[:] = 1.0
    stream.table.stamp[:] = stream.steps_done + 1
    before, need = stream.ledger.num_considered, 16 - stream.leftover
    assert filler.fill() >= need - 1
    assert stream.ledger.num_considered - before <= 5 * need / 0.25
    assert train(stream).is_fill.any()


@pytest.mark.parametrize("changes", [{"selection__fallback": "uniform"}, {"sync__max_staleness": 2}])
def test_a_fill_is_blind_where_old_scores_may_not_be_used(changes: dict[str, Any]) -> None:
    stream, filler = scored(
        filling(train__steps=0, train__epochs=9.0, selection__policy="topk", selection__keep=0.25, **changes)
    )
    for _ in range(3):  # so that the bound is passed, too
        filler.fill()
        train(stream)
    before = stream.ledger.num_considered
    assert filler.fill() == stream.ledger.num_considered - before


def test_scores_of_more_than_an_epoch_ago_are_not_recent() -> None:
    config = filling(train__steps=0, train__epochs=9.0, selection__policy="topk", selection__keep=0.25)
    stream, _ = scored(config)
    table = Fallback(config, stream.order, stream.table)
    assert not table.knows(1, 0, 64, step=stream.steps_done + 10, recent=2)
    assert table.knows(1, 0, 64, step=stream.steps_done + 10, recent=100)


def test_in_a_stretch_without_selection_a_fill_is_kept_for_sure_like_the_rest() -> None:
    stream, filler = stream_of(filling(train__steps=0, train__epochs=2.0, selection__warmup=10))
    filler.fill()
    batch = train(stream)
    keep = np.float32(stream.keep)
    assert batch.keep_probability.tolist() == [1.0] * 10 + [keep] * 6


# --- nothing is lost, whatever happens ------------------------------------------------------------


@testing(deadline=None, max_examples=60)
@given(
    st.integers(17, 90),
    st.integers(40, 200),
    st.lists(st.tuples(st.sampled_from("gaxftrk"), st.integers(1, 9)), max_size=80),
)
def test_every_candidate_is_considered_once_and_trained_at_most_once_with_fills(
    num_examples: int, limit: int, moves: list[tuple[str, int]]
) -> None:
    config = filling(train__steps=0, train__epochs=limit / num_examples)
    (stream, filler), trained = stream_of(config, num_examples), list[tuple[int, int]]()
    last = stream.ledger.limit
    peers = [Peer(name, "cpu", is_ready=True) for name in "ab"]
    leases: dict[int, Any] = {}
    for move, number in [*moves, *[("f", 1), ("t", 1)] * (2 + limit // 4)]:
        if move == "g":
            stream.ahead = 0.5 if number % 2 else 0.0
            leases |= {lease.lease_id: lease for _, lease in stream.grant(peers)}
        elif move == "a" and leases:
            lease = leases.pop(sorted(leases)[number % len(leases)])
            stream.accept(answer_all(lease, keep_every=1 + number % 4))
        elif move == "x":
            stream.expire_peer("ab"[number % 2])
        elif move == "f":
            filler.fill()
        elif move == "t" and stream.ready:
            batch = train(stream)
            assert len(batch.example_ids) == 16
            trained += zip(batch.epochs.tolist(), batch.example_ids.tolist(), strict=True)
        elif move == "k":
            stream.aim(0.25 + number / 40)
        elif move == "r":
            again, filler = stream_of(config, num_examples)
            again.restore(stream.state())
            stream, leases = again, {}
    assert stream.is_finished
    assert stream.ledger.num_considered == last
    assert len(trained) == len(set(trained)) == 16 * stream.steps_done
    assert stream.yielded.num_kept == len(trained) + stream.leftover


def test_a_checkpoint_keeps_what_was_filled_and_at_which_rate_its_lease_aimed() -> None:
    config = filling(train__steps=0, train__epochs=9.0)
    stream, filler = stream_of(config)
    stream.aim(0.4)
    filler.fill()
    again, _ = stream_of(config)
    again.restore(stream.state())
    batch = again.ready[0]
    assert batch.is_fill.all()
    assert set(batch.target_keep.tolist()) == {0.4}
    assert again.keep == 0.4


# --- what a fill weighs ---------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [0.3, 1.0])
@pytest.mark.parametrize("keep", [0.25, 0.5])
def test_the_mean_weight_of_a_batch_does_not_depend_on_how_much_of_it_was_filled(
    keep: float, strength: float
) -> None:
    random = np.random.default_rng(0)
    beta = 1.0 / keep - 1.0

    def batch(share: float) -> tuple[np.ndarray, np.ndarray]:
        """256 examples of one distribution of losses, a share of them taken blindly, the rest selected."""
        losses = random.exponential(size=20_000).astype(np.float32)
        chance = strength * (1.0 - np.exp(-losses)) ** beta + (1.0 - strength) * keep
        selected = losses[random.random(len(losses)) < chance][: round(256 * (1.0 - share))]
        chances = strength * (1.0 - np.exp(-selected)) ** beta + (1.0 - strength) * keep
        blind = random.exponential(size=256 - len(selected)).astype(np.float32)
        return (
            np.concatenate([selected, blind]),
            np.concatenate([chances, np.full(len(blind), keep)]).astype(np.float32),
        )

    means = []
    for share in (0.0, 0.5, 1.0):
        fresh = FreshWeights(window=4096)
        ratios = [
            fresh.ratios(*map(torch.from_numpy, batch(share)), strength, keep=np.full(256, keep)).mean()
            for _ in range(100)
        ]
        means.append(float(np.mean(ratios[20:])))
    assert means == pytest.approx([means[0]] * 3, rel=0.03)
    assert means[0] == pytest.approx(1.0, abs=0.05)


def test_unbiased_weights_count_a_fill_once() -> None:
    stream, filler = stream_of(filling(selection__policy="sb", selection__keep=0.25))
    filler.fill()
    batch = train(stream)
    assert (batch.target_keep / batch.keep_probability).tolist() == [1.0] * 16


# --- a real loop ----------------------------------------------------------------------------------


class DeafPort(FaultyPort):
    """A port whose selector never gets a word."""

    def __init__(self, port: Port) -> None:
        super().__init__(port, 0, drop=1.0)


def test_without_any_answer_the_loop_trains_on_and_the_summary_says_so(run_path: Path) -> None:
    summary = train_over(filling(train__steps=20), run_path, DeafPort)
    assert (summary["status"], summary["steps"]) == ("finished", 20)
    assert summary["fill.share"] == 1.0
    assert summary["staleness.mean"] is None
    assert summary["lease.fallback"] == 0
    (begins,) = events_of(run_path, "fill")
    assert (begins["state"], begins["reason"], begins["step"]) == ("begins", "selector late", 0)
    assert {event["fill"] for event in events_of(run_path, "step")} == {1.0}


def test_a_selector_in_time_leaves_nothing_to_fill_and_a_filled_run_resumes(run_path: Path) -> None:
    config = filling(train__steps=20, checkpoint__every=5, checkpoint__keep=9)
    train_over(config, run_path, DeafPort)
    for step in (10, 15, 20):
        (run_path / "checkpoints" / f"step-{step}.pt").unlink()
    (run_path / "summary.json").unlink()
    summary = train_over(config, run_path, DeafPort, resume=True)
    assert summary["steps"] == 20
    assert summary["fill.share"] == 1.0


@pytest.mark.parametrize("late", ["fill", "wait"])
def test_a_run_that_nobody_joins_begins_at_once_or_waits_as_told(run_path: Path, late: str) -> None:
    given = settings(selection__late=late, train__steps=30, link__wait_s=2.0)
    process = Forked("trainer", "--bind", f"ipc://{run_path}.link", "--run-dir", str(run_path), *given)
    output, _ = process.communicate(timeout=HANG_S)
    if late == "wait":
        assert process.returncode == 3, output
        assert "no selector for" in output
        return
    assert process.returncode == 0, output
    assert "no selector is ready yet" in output
    assert summary_of(run_path)["fill.share"] == 1.0
    assert events_of(run_path, "fill")[0]["reason"] == "starting"


def test_fallback_wait_waits_for_the_first_selector_even_where_late_batches_are_filled(
    run_path: Path,
) -> None:
    given = settings(selection__late="fill", selection__fallback="wait", link__wait_s=2.0)
    process = Forked("trainer", "--bind", f"ipc://{run_path}.link", "--run-dir", str(run_path), *given)
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == PeerLost.exit_code, output
