"""Data sets larger than the score table: what is remembered of them, and what a billion examples cost."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.own_data import enter_folder

import sbpipe
from sbpipe.config import resolve
from sbpipe.errors import ConfigError
from sbpipe.records import Floats, Selection
from sbpipe.trainer.record.census import Census
from sbpipe.trainer.stream.scores import ScoreTable, refuse_forgetting
from sbpipe.trainer.stream.stream import Stream

ENDLESS = """
import numpy as np, torch

class Endless:
    num_classes = 2
    def __init__(self, size):
        self.size = size
    def __len__(self):
        return self.size
    def __getitem__(self, i):
        return torch.tensor([i % 2 - 0.5, i % 5.0]), i % 2

def billion():
    return Endless(10**9), Endless(64)

def linear(num_classes, input_shape):
    return torch.nn.Linear(2, num_classes)
"""


def told(scores: list[float], version: int, kept: list[int]) -> Selection:
    values: Floats = np.array(scores, np.float32)
    return Selection(0, version, values, np.array(kept, np.int32), np.full(len(scores), 0.5, np.float32))


def test_a_row_holds_the_example_that_was_considered_last() -> None:
    table = ScoreTable(100, 10, most_rows=10)
    table.record(np.array([3, 4, 15]), told([0.5, 1.5, 2.5], 7, [0]))
    table.record(np.array([13, 4]), told([3.5, 4.5], 9, [1]))
    scores, versions = table.lookup(np.array([3, 13, 4, 15, 23, 5]))
    assert np.isnan(scores[[0, 4, 5]]).all()
    assert scores[1:4].tolist() == [3.5, 4.5, 2.5]
    assert versions.tolist() == [-1, 9, 9, 7, -1, -1]
    assert table.times_kept[[3, 4, 5]].tolist() == [0, 1, 0], "the counts of a row begin anew with its owner"
    assert table.times_considered[[3, 4, 5]].tolist() == [1, 2, 1]


def test_of_two_examples_of_one_lease_in_one_row_the_later_has_it() -> None:
    table = ScoreTable(100, 10, most_rows=10)
    table.record(np.array([3, 13, 23]), told([1.0, 2.0, 3.0], 0, [0, 1]))
    assert np.isfinite(table.lookup(np.array([3, 13, 23]))[0]).tolist() == [False, False, True]
    assert (table.times_considered[3], table.times_kept[3]) == (1, 0)
    assert table.recent.tolist() == [1.0, 2.0, 3.0], "the history has them all"


def test_a_table_with_a_row_for_each_is_the_same_whatever_rows_there_might_be() -> None:
    tables = [ScoreTable(50, 10), ScoreTable(50, 10, most_rows=50), ScoreTable(50, 10, most_rows=10**6)]
    for table in tables:
        table.record(np.array([3, 44, 15]), told([0.5, np.nan, 2.5], 7, [0]))
    for table in tables[1:]:
        assert table.owner is None
        for name, column in tables[0].state().items():
            assert np.array_equal(column, table.state()[name], equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_examples=st.sampled_from([8, 40, 1000]),
    most_rows=st.sampled_from([None, 7, 200]),
)
def test_what_is_written_together_is_what_is_written_one_by_one(
    seed: int, num_examples: int, most_rows: int | None
) -> None:
    rng = np.random.default_rng(seed)
    together, one_by_one = (ScoreTable(num_examples, 20, most_rows=most_rows) for _ in range(2))
    for _ in range(rng.integers(1, 12)):
        ids = rng.permutation(num_examples)[: rng.integers(1, 9)]
        scores = np.where(rng.random(len(ids)) < 0.1, np.nan, rng.random(len(ids)))
        kept = np.flatnonzero(rng.random(len(ids)) < 0.5).tolist()
        selection = told(scores.tolist(), int(rng.integers(50)), kept)
        for table in (together, one_by_one):
            table.record(ids, selection)
        one_by_one.settle()
    for name, column in one_by_one.state().items():
        assert np.array_equal(column, together.state()[name], equal_nan=True), name


def test_a_shared_table_goes_through_a_checkpoint_in_the_rows_that_it_uses() -> None:
    before, after = ScoreTable(10**9, 10, most_rows=2**20), ScoreTable(10**9, 10, most_rows=2**20)
    ids = np.array([5, 10**9 - 1, 2**20 + 6])
    before.record(ids, told([0.5, 1.5, 2.5], 7, [1]))
    state = before.state()
    assert sum(column.nbytes for column in state.values()) < 1000
    after.restore(state)
    for found, expected in zip(after.lookup(ids), before.lookup(ids), strict=True):
        assert np.array_equal(found, expected)
    assert after.times_kept.sum() == 1


def test_examples_of_a_shared_table_are_told_with_their_ids(tmp_path: Path) -> None:
    table = ScoreTable(10**9, 10, most_rows=2**20)
    census = Census(table, None, 2)
    table.record(np.array([10**9 - 5, 2**20 + 6, 8]), told([0.5, 9.5, 2.5], 7, [1]))
    table.settle()
    assert census.take()["times_kept"] == [2, 1]
    shown = []

    def show(ids: np.ndarray) -> tuple[None, np.ndarray, np.ndarray]:
        shown.append(ids.tolist())
        return None, ids, ids

    census.write(tmp_path, show)  # type: ignore[arg-type]
    assert shown[:2] == [[10**9 - 5, 8, 2**20 + 6], [2**20 + 6, 8, 10**9 - 5]]
    with np.load(tmp_path / "examples.npz") as file:
        assert sorted(file["example_ids"].tolist()) == [8, 2**20 + 6, 10**9 - 5]
        assert len(file["score"]) == 3


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"selection.reuse_epochs": 2, "selection.policy": "sb"}, "selection.reuse_epochs = 2"),
        ({"selection.policy": "infobatch", "mode": "inline"}, "selection.policy = 'infobatch'"),
    ],
)
def test_what_goes_by_every_example_is_refused_where_the_table_forgets(
    settings: dict[str, object], key: str
) -> None:
    config = resolve({**settings, "selection.table": 2000})
    refuse_forgetting(config, 2000)
    with pytest.raises(ConfigError, match=f"{key}.*2001 examples.*2000 rows.*selection.table = 2001"):
        refuse_forgetting(config, 2001)


def test_the_stream_of_a_billion_examples_takes_the_memory_of_the_table(tmp_path: Path) -> None:
    tracemalloc.start()
    stream = Stream(resolve({"train.steps": 10}), 10**9)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 130e6
    assert stream.order.ids(0, 10**9 - 3, 10**9).max() < 10**9


def test_a_run_over_a_billion_examples_takes_less_than_500_mb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_folder(tmp_path, monkeypatch, endless_data=ENDLESS)
    settings = {
        "mode": "inline",
        "data.name": "endless_data:billion",
        "data.workers": 0,
        "data.block": 10**6,
        "model.name": "endless_data:linear",
        "train.steps": 6,
        "train.batch_size": 32,
        "checkpoint.every": 2,
    }
    tracemalloc.start()
    try:
        summary = sbpipe.train(settings, run_dir=tmp_path / "run")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert summary["status"] == "finished"
    assert most < 500e6
    checkpoints = list((tmp_path / "run" / "checkpoints").iterdir())
    assert checkpoints
    assert max(path.stat().st_size for path in checkpoints) < 1e6
