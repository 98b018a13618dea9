"""Data sets of any items in our own loop: the user's collate function makes the batches, in every mode."""

from pathlib import Path
from typing import Any

import pytest
from support.own_data import enter_folder
from support.runs import sbpipe, settings, small, train_inline, train_over

from sbpipe.errors import ConfigError, DataError

WORDS = """
import random, torch
from torch import nn
from torch.nn import functional

class Words(torch.utils.data.Dataset):
    num_classes = 3
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, i):
        words = [1 + i % 3] * (2 + i % 5)
        if random.random() < 0.2:
            words[0] = 9
        return {"words": words, "label": i % 3}

def pad(items):
    longest = max(len(item["words"]) for item in items)
    words = torch.tensor([item["words"] + [0] * (longest - len(item["words"])) for item in items])
    return {"words": words, "mask": (words > 0).float()}, torch.tensor([item["label"] for item in items])

def data():
    return Words(600), Words(90), pad

def no_pair():
    return Words(600), Words(90), lambda items: {"words": items}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 16), nn.Linear(16, 3)
    def forward(self, words, mask):
        return self.head((self.embed(words) * mask[..., None]).sum(1))

def model(num_classes, input_shape):
    return Net()

def loss(outputs, targets):
    return functional.cross_entropy(outputs, targets, reduction="none")

class Rows(torch.utils.data.Dataset):
    num_classes = 3
    def __len__(self):
        return 300
    def __getitem__(self, i):
        return torch.tensor([i % 3, 3, 4]), i % 3

def rows():
    return Rows(), Rows()

def bag(num_classes, input_shape):
    return nn.EmbeddingBag(10, num_classes)
"""
OWN = {"data.name": "words:data", "model.name": "words:model", "loss.name": "words:loss", "model.options": {}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter_folder(tmp_path, monkeypatch, words=WORDS)


def own(**changes: Any) -> Any:
    return small(**{key.replace(".", "__"): value for key, value in OWN.items()} | changes)


def test_ragged_items_are_learned_inline(tmp_path: Path) -> None:
    summary = train_inline(own(mode="inline", train__steps=60, optim__lr=0.3), tmp_path / "run")
    assert summary["eval.error"] < 0.2
    assert summary["selector.scored"] > 0


def test_a_selector_over_a_port_chooses_what_one_process_chooses(tmp_path: Path) -> None:
    inline = train_inline(own(mode="inline"), tmp_path / "inline")
    lockstep = train_over(own(mode="lockstep"), tmp_path / "lockstep")
    assert inline["weights.digest"] == lockstep["weights.digest"]


def test_ragged_items_are_trained_on_by_real_processes(folder: Path) -> None:
    given = settings(**{key.replace(".", "__"): value for key, value in OWN.items()}, train__steps=8)
    done = sbpipe("run", "--run-dir", "run", *given, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stdout


def test_whole_numbers_reach_an_embedding_as_they_are(tmp_path: Path) -> None:
    config = own(mode="inline", data__name="words:rows", model__name="words:bag", train__steps=30)
    assert train_inline(config, tmp_path / "run")["steps"] == 30


def test_what_needs_batches_that_can_be_cut_is_refused(tmp_path: Path) -> None:
    for changes, words in (
        ({"train__accumulate": 2}, r"train.accumulate = 2: .*cannot be cut into parts.*sbpipe\.select"),
        ({"model__name": "small_cnn"}, r"model.name = 'small_cnn': named models take images"),
    ):
        with pytest.raises(ConfigError, match=words):
            train_inline(own(mode="inline", **changes), tmp_path / "run")
    with pytest.raises(DataError, match=r"data.label_noise = 0.1: .*collate function of its own"):
        train_inline(own(mode="inline", data__label_noise=0.1), tmp_path / "run")
    with pytest.raises(DataError, match=r"gave a dict. Return a pair \(inputs, targets\)"):
        train_inline(own(mode="inline", data__name="words:no_pair"), tmp_path / "run")
