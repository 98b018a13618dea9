"""Score reuse: who is scored when, and what is remembered."""

from pathlib import Path

import numpy as np
import pytest
from support.runs import events_of, small, train_inline, train_over_the_wire

from sbpipe.config import resolve, warnings_of
from sbpipe.selection import ScoreCache

IDS = np.arange(4)


def scores(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_every_nth_epoch_is_scored_and_the_others_remember() -> None:
    cache = ScoreCache(10, every=3, by="last", keep=0.5)
    for epoch, is_scored in enumerate([True, False, False, True, False]):
        known, is_new = cache.recall(IDS, epoch)
        assert is_new.tolist() == [is_scored] * 4
        if is_scored:
            cache.remember(IDS, scores(1, 2, 3, 4) * (epoch + 1), epoch)
        else:
            assert known.tolist() == (scores(1, 2, 3, 4) * (epoch - epoch % 3 + 1)).tolist()


def test_who_is_not_remembered_is_scored() -> None:
    cache = ScoreCache(10, every=2, by="last", keep=0.5)
    cache.remember(IDS[:2], scores(5, np.nan), 0)
    known, is_new = cache.recall(IDS, 1)
    assert is_new.tolist() == [False, True, True, True]
    assert known[0] == 5


def test_an_average_forgets_by_halves() -> None:
    cache = ScoreCache(10, every=2, by="average", keep=0.5)
    for epoch, value in zip((0, 2, 4, 6), (8.0, 4.0, 2.0, np.inf), strict=True):
        cache.remember(IDS[:1], scores(value), epoch)
    assert cache.recall(IDS[:1], 7)[0].tolist() == [4.0]


def test_without_reuse_everyone_is_scored_and_nothing_is_held() -> None:
    cache = ScoreCache(10**9, every=1, by="last", keep=0.5)
    cache.remember(IDS, scores(1, 2, 3, 4), 0)
    assert cache.recall(IDS, 7)[1].all()


REUSE = {
    "selection__reuse_epochs": 3,
    "selection__policy": "sb",
    "train__steps": 0,
    "train__epochs": 6.0,
    "data__examples": 160,
}
PREDICTED = REUSE | {"selection__reuse_by": "gaussian"}


@pytest.mark.parametrize("by", ["last", "average", "gaussian"])
def test_a_run_scores_a_third_of_its_candidates(by: str, run_path: Path) -> None:
    summary = train_inline(small(mode="inline", **REUSE, selection__reuse_by=by), run_path)
    assert sum(event["candidates"] for event in events_of(run_path, "selection")) == 960
    assert summary["selector.scored"] == pytest.approx(320, abs=40), (
        "two epochs of six, and what passes scored beyond the last kept"
    )


def test_lockstep_with_reuse_equals_inline_bit_for_bit(run_path: Path) -> None:
    here = train_inline(small(mode="inline", **PREDICTED), run_path / "here")
    wire = train_over_the_wire(small(mode="lockstep", **PREDICTED), run_path / "wire")
    assert wire["weights.digest"] == here["weights.digest"]


def test_settings_without_effect_are_said() -> None:
    assert any(
        "selection.reuse_by" in note for note in warnings_of(resolve({"selection.reuse_by": "average"}))
    )
    assert any(
        "selection.reuse_epochs = 3" in note
        for note in warnings_of(resolve({"selection.policy": "random", "selection.reuse_epochs": 3}))
    )
