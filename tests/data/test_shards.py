"""An order by shards: every example once, a few at a time; from litdata's and MosaicML streaming's files."""

import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import runs
from support.own_data import enter_folder
from support.runs import HANG_S

import sbpipe
from sbpipe.config import DataConfig, ViewConfig, resolve, toml_value
from sbpipe.data import Order, load_data
from sbpipe.runs.names.files import SUMMARY

SHARDED = """
import torch

class Sharded:
    num_classes = 3
    read = []
    def __len__(self):
        return 400
    def __getitem__(self, i):
        Sharded.read.append(i)
        return torch.tensor([float(i)]), i % 3

def data():
    return Sharded(), Sharded()
"""
LITDATA = """
import os, torch, litdata

class Stored(litdata.StreamingDataset):
    num_classes = 3
    def __init__(self, split):
        super().__init__(split)
        self._split = split
    def __getitem__(self, index):
        with open(f"read-{self._split}-{os.getpid()}", "a") as file:
            file.write(f"{index}\\n")
        item = super().__getitem__(index)
        return torch.from_numpy(item["x"]), item["y"]

def data():
    return Stored("train"), Stored("test")

def model(num_classes, input_shape):
    return torch.nn.Linear(4, num_classes)
"""
MDS = """
import torch, streaming

class Stored(streaming.{kind}):
    num_classes = 3
    def __getitem__(self, index):
        item = super().__getitem__(index)
        return torch.from_numpy(item["x"].copy()), item["y"]

def data():
    return Stored(local="train", {options}), Stored(local="test", {options})

def model(num_classes, input_shape):
    return torch.nn.Linear(4, num_classes)
"""


@given(st.integers(1, 700), st.integers(1, 60), st.integers(1, 9), st.integers(0, 2**40), st.integers(0, 99))
def test_an_epoch_in_shards_holds_every_example_exactly_once(
    num_examples: int, block: int, window: int, seed: int, epoch: int
) -> None:
    example_ids = Order(num_examples, seed, block=block, window=window).ids(epoch, 0, num_examples)
    assert np.array_equal(np.sort(example_ids), np.arange(num_examples))


@given(st.integers(2, 700), st.integers(1, 60), st.integers(1, 9), st.data())
def test_a_range_of_it_is_a_part_of_the_whole(
    num_examples: int, block: int, window: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, num_examples))
    stop = data.draw(st.integers(start, num_examples))
    order = Order(num_examples, seed=7, block=block, window=window)
    assert np.array_equal(order.ids(1, start, stop), order.ids(1, 0, num_examples)[start:stop])


def test_a_window_of_shards_is_used_up_before_the_next_begins() -> None:
    example_ids = Order(10_000, seed=1, block=100, window=5).ids(3, 0, 10_000)
    shards = example_ids.reshape(20, 500) // 100
    assert all(len(np.unique(window)) == 5 for window in shards)
    assert len(set(shards.flatten().tolist())) == 100
    assert abs(np.corrcoef(np.arange(500), example_ids[:500])[0, 1]) < 0.2, "mixed inside it"


def test_shards_and_their_examples_are_shuffled_anew_in_every_epoch() -> None:
    order = Order(10_000, seed=1, block=100, window=5)
    firsts = {tuple(np.unique(order.ids(epoch, 0, 500) // 100)) for epoch in range(20)}
    assert len(firsts) == 20


def test_every_shard_is_equally_likely_to_come_first() -> None:
    counts = np.zeros(7)
    for seed in range(350):
        counts[np.unique(Order(68, seed, block=10, window=1).ids(0, 0, 8) // 10)] += 1
    assert ((counts - 50) ** 2 / 50).sum() < 6 + 5 * np.sqrt(12)


@pytest.mark.parametrize(("block", "window"), [(0, 4), (100, 10), (1000, 1), (5000, 3)])
def test_one_window_over_everything_is_the_order_without_shards(block: int, window: int) -> None:
    plain, sharded = Order(1000, seed=3), Order(1000, seed=3, block=block, window=window)
    assert np.array_equal(plain.ids(2, 0, 1000), sharded.ids(2, 0, 1000))


def test_an_order_of_a_billion_in_shards_is_found_anywhere_at_once() -> None:
    order = Order(10**9 - 17, seed=0, block=20_000, window=32)
    found = order.ids(4, 5 * 10**8, 5 * 10**8 + 512)
    assert len(set(found.tolist())) == 512
    assert len(set((found // 20_000).tolist())) <= 32


def test_a_batch_is_read_in_the_order_of_its_ids_and_comes_in_the_order_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_folder(tmp_path, monkeypatch, sharded_data=SHARDED)
    config = DataConfig(name="sharded_data:data", workers=0)
    data = load_data(config, ViewConfig(), seed=0, device=torch.device("cpu"))
    read = sys.modules["sharded_data"].Sharded.read
    read.clear()
    inputs, targets = data.train.batch(np.array([300, 7, 301, 8, 7]), 0)
    assert read == [7, 7, 8, 300, 301]
    assert inputs.flatten().tolist() == [300, 7, 301, 8, 7]
    assert targets.tolist() == [0, 1, 1, 2, 1]


@pytest.fixture
def litdata_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two data sets in litdata's own format, of 600 and 100 examples in chunks of 32."""
    pytest.importorskip("litdata", reason="the extra `litdata` is not installed")
    from litdata.streaming.writer import BinaryWriter

    monkeypatch.setenv("HOME", str(tmp_path))
    for split, count in (("train", 600), ("test", 100)):
        writer = BinaryWriter(str(tmp_path / split), chunk_size=32)
        for i in range(count):
            writer[i] = {"x": np.array([i, i % 3, 1, 0], np.float32), "y": i % 3}
        writer.done()
        writer.merge()
    return enter_folder(tmp_path, monkeypatch, stored_data=LITDATA)


@pytest.mark.filterwarnings("ignore")
def test_litdata_chunks_are_opened_once_per_batch_and_window(
    litdata_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load_data(
        DataConfig(name="stored_data:data", workers=0), ViewConfig(), seed=0, device=torch.device("cpu")
    )
    config = resolve({"data.block": 32, "data.window": 4, "seed": 5})
    example_ids = Order.of(config, data.train.num_examples).ids(1, 0, 128)
    from litdata.streaming.item_loader import PyTreeLoader

    opened = []
    load = PyTreeLoader.load_item_from_chunk

    def noted(self: PyTreeLoader, index: int, chunk_index: int, *args: object, **options: object) -> object:
        opened.append(chunk_index)
        return load(self, index, chunk_index, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(PyTreeLoader, "load_item_from_chunk", noted)
    inputs, _ = data.train.batch(example_ids, 1)
    assert inputs[:, 0].tolist() == example_ids.tolist()
    assert len(opened) == 128
    changes = 1 + int(np.count_nonzero(np.diff(opened)))
    assert changes == len(set(opened)) <= 5, "four shards, or five where the short one is among them"


FROM_LITDATA = {
    "data.name": "stored_data:data",
    "data.block": 32,
    "data.window": 4,
    "data.workers": 1,
    "model.name": "stored_data:model",
    "train.batch_size": 16,
    "train.epochs": 1.0,
}


@pytest.mark.filterwarnings("ignore")
def test_a_run_reads_litdata_files(litdata_folder: Path) -> None:
    summary = sbpipe.train({"mode": "inline", **FROM_LITDATA}, run_dir=litdata_folder / "run")
    assert summary["status"] == "finished"
    assert summary["candidates"] == 600


@pytest.mark.timeout(2 * HANG_S)
def test_both_roles_read_litdata_files_a_few_chunks_at_a_time(litdata_folder: Path) -> None:
    given = FROM_LITDATA | {"train.epochs": 2.0, "selection.keep": 0.5, "selection.late": "wait"}
    words = [word for key, value in given.items() for word in ("--set", f"{key}={toml_value(value)}")]
    done = runs.sbpipe("run", "--device", "cpu", "--selector-device", "cpu", "--run-dir", "run", *words)
    assert done.returncode == 0, done.stderr
    summary = json.loads((litdata_folder / "run" / SUMMARY).read_text())
    assert (summary["candidates"], summary["selector.scored"]) == (1200, 1200)
    # Besides these two, processes that only look at a few examples of it.
    readers = [np.loadtxt(path, int) for path in litdata_folder.glob("read-train-*")]
    trainer, selector = sorted(readers, key=len)[-2:]
    assert len(trainer) >= 600, "what was kept, of two epochs"
    assert set(selector.tolist()) == set(range(600))
    for read in (trainer, selector):
        of_each = [len(set((read[first : first + 32] // 32).tolist())) for first in range(0, len(read), 32)]
        assert np.median(of_each) <= 4 + 1
        assert max(of_each) <= 2 * 4 + 1, "32 that were kept are of two windows at the most"
    assert list(litdata_folder.glob("read-test-*")), "the trainer reads the other split"


def mds_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: str = "") -> Path:
    """Two data sets in MosaicML streaming's own format, of 600 examples in shards of 29 (the last: 20)."""
    streaming = pytest.importorskip("streaming", reason="pip install mosaicml-streaming")
    columns = {"x": "ndarray:float32:4", "y": "int"}
    for name in ("train", "test"):
        with streaming.MDSWriter(out=str(tmp_path / name), columns=columns, size_limit=1024) as writer:
            for i in range(600):
                writer.write({"x": np.array([i, i % 3, 1, 0], np.float32), "y": i % 3})
    return enter_folder(tmp_path, monkeypatch, stored_mds=MDS.format(kind=kind, options=options))


@pytest.mark.filterwarnings("ignore")
def test_mosaics_shards_are_opened_once_per_batch_and_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mds_folder(tmp_path, monkeypatch, "LocalDataset")
    config = DataConfig(name="stored_mds:data", workers=0)
    data = load_data(config, ViewConfig(), seed=0, device=torch.device("cpu"))
    from streaming.base.format.mds.reader import MDSReader

    opened, read = [], MDSReader.get_sample_data

    def noted(self: MDSReader, index: int) -> bytes:
        opened.append(self.raw_data.basename)
        return read(self, index)

    monkeypatch.setattr(MDSReader, "get_sample_data", noted)
    settings = resolve({"data.block": 29, "data.window": 4, "seed": 5})
    example_ids = Order.of(settings, data.train.num_examples).ids(1, 0, 4 * 29)
    inputs, _ = data.train.batch(example_ids, 1)
    assert inputs[:, 0].tolist() == example_ids.tolist()
    changes = 1 + sum(one != other for one, other in pairwise(opened))
    assert len(opened) == 4 * 29
    assert changes == len(set(opened)) <= 5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["LocalDataset", "StreamingDataset"])
def test_a_run_reads_mosaics_files(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mds_folder(tmp_path, monkeypatch, kind, "batch_size=1" if kind == "StreamingDataset" else "")
    settings = {
        "mode": "inline",
        "data.name": "stored_mds:data",
        "data.block": 29,
        "data.window": 4,
        "data.workers": 1,
        "model.name": "stored_mds:model",
        "train.batch_size": 16,
        "train.epochs": 1.0,
    }
    summary = sbpipe.train(settings, run_dir=tmp_path / "run")
    assert (summary["status"], summary["candidates"]) == ("finished", 600)
