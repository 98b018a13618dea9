"""Wrong labels on purpose: how many, which, where, and that everyone sees the same ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.own_data import LISTED, enter_folder

from sbpipe.config import DataConfig, ViewConfig
from sbpipe.data import Data, load_data
from sbpipe.data.noise import LabelNoise
from sbpipe.data.score_file import ScoreFile, write_scores
from sbpipe.errors import ConfigError

NUM_EXAMPLES, NUM_CLASSES = 60, 3

LISTED_DATA = f"""{LISTED}
class One(Listed):
    num_classes = 1

def both(make, kind=Listed): return kind(numbered(make(60))), kind(numbered(make(9)))
def classes(): return both(lambda n: [i % 3 for i in range(n)])
def numbers(): return both(lambda n: torch.rand(n, 2))
def maps(): return both(lambda n: torch.zeros(n, 4, 4, dtype=torch.int64))
def one(): return both(lambda n: [0] * n, One)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter_folder(tmp_path, monkeypatch, listed_data=LISTED_DATA)


def arrays(here: Path) -> dict[str, Any]:
    x, y = (
        np.random.default_rng(0).integers(0, 256, (NUM_EXAMPLES, 4, 4), np.uint8),
        np.arange(NUM_EXAMPLES) % NUM_CLASSES,
    )
    np.savez(here / "a.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    return {"name": "arrays", "path": "a.npz"}


def image_folder(here: Path) -> dict[str, Any]:
    for split, number in (("train", NUM_EXAMPLES // NUM_CLASSES), ("val", 3)):
        for label in "abc":
            (here / split / label).mkdir(parents=True)
            for place in range(number):
                Image.new("L", (8, 8), place).save(here / split / label / f"{place:02}.png")
    return {"name": "image_folder", "path": ".", "image_size": 8}


def mnist(here: Path) -> dict[str, Any]:
    for prefix, number in (("train", NUM_EXAMPLES), ("t10k", 9)):
        labels = (np.arange(number) % NUM_CLASSES).astype(np.uint8)
        folder = here / "MNIST" / "raw"
        folder.mkdir(parents=True, exist_ok=True)
        head = np.array([2051, number, 8, 8], ">u4").tobytes()
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(
            head + np.zeros((number, 8, 8), np.uint8).tobytes()
        )
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(
            np.array([2049, number], ">u4").tobytes() + labels.tobytes()
        )
    return {"name": "mnist", "path": "."}


def own(here: Path) -> dict[str, Any]:
    return {"name": "listed_data:classes"}


def embedded(here: Path) -> dict[str, Any]:
    return {"examples": NUM_EXAMPLES, "test_examples": 9}


def load(settings: dict[str, Any], *, run_seed: int = 0, **changed: Any) -> Data:
    config = DataConfig(**{"workers": 0} | settings | changed)
    return load_data(config, ViewConfig(), seed=run_seed, device=torch.device("cpu"))


def labels(data: Data) -> list[int]:
    return data.train.batch(np.arange(data.train.num_examples), 0).targets.tolist()


def test_its_share_of_labels_becomes_any_other_class() -> None:
    right, example_ids = np.arange(50_000) % 10, np.arange(50_000)
    noisy = LabelNoise(0.2, 0, 10)(right, example_ids)
    is_wrong = noisy != right
    assert abs(is_wrong.mean() - 0.2) < 0.01
    steps = np.bincount((noisy - right)[is_wrong] % 10, minlength=10)
    assert steps[0] == 0
    assert steps[1:].min() > 0.9 * steps[1:].mean()


def test_a_label_depends_on_seed_and_example_alone() -> None:
    noise, right, example_ids = LabelNoise(0.5, 3, 10), np.arange(100) % 10, np.arange(100)
    some = np.array([70, 3, 3, 99])
    assert np.array_equal(noise(right[some], some), noise(right, example_ids)[some])
    assert not np.array_equal(LabelNoise(0.5, 4, 10)(right, example_ids), noise(right, example_ids))


@pytest.mark.parametrize("make", [embedded, arrays, mnist, image_folder, own])
def test_every_data_set_of_classes_may_have_wrong_labels(here: Path, make: Any) -> None:
    settings = make(here)
    clean, noisy, again = (
        load(settings, label_noise=share, run_seed=seed) for share, seed in ((0.0, 0), (0.5, 0), (0.5, 1))
    )
    everyone = np.arange(NUM_EXAMPLES)
    expected = LabelNoise(0.5, 0, 3 if make in (arrays, image_folder, own) else 10)(
        np.array(labels(clean)), everyone
    )
    assert labels(noisy) == labels(again) == expected.tolist() != labels(clean)
    assert (
        noisy.train.targets_of(everyone) is None
        or noisy.train.targets_of(everyone).tolist() == expected.tolist()
    )  # type: ignore[union-attr]
    assert noisy.score.batch(everyone, 3).targets.tolist() == expected.tolist()
    tested = [data.test.batch(np.arange(9), 0) for data in (clean, noisy)]
    assert torch.equal(tested[0].targets, tested[1].targets)
    assert torch.equal(clean.train.batch(everyone, 0).inputs, noisy.train.batch(everyone, 0).inputs)


@pytest.mark.parametrize("make", [arrays, image_folder, own])
def test_the_fingerprint_tells_shares_and_seeds_of_wrong_labels_apart(here: Path, make: Any) -> None:
    settings = make(here)
    changes: list[dict[str, Any]] = [
        {},
        {"label_noise": 0.05},
        {"label_noise": 0.1},
        {"label_noise": 0.1, "seed": 1},
    ]
    prints = [load(settings, **change).fingerprint for change in changes]
    assert len(set(prints)) == 4
    assert load(settings, label_noise=0.1).fingerprint == prints[2]


def test_the_embedded_data_has_the_wrong_labels_it_always_had() -> None:
    settings = {"examples": 40, "test_examples": 10}
    assert load(settings).fingerprint == "63572c2fbe284edc"
    assert load(settings, label_noise=0.3).fingerprint == "25f88309da15d8f6"
    assert load(settings, label_noise=0.3, classes=20).fingerprint == "69269ab250b84fe6"


def test_classes_that_the_data_set_does_not_have_are_never_taken(here: Path) -> None:
    data = load(arrays(here), label_noise=1.0, classes=12)
    assert (data.num_classes, set(labels(data))) == (12, {0, 1, 2})


def test_a_pruned_data_set_has_the_labels_of_the_whole(here: Path) -> None:
    settings = arrays(here) | {"label_noise": 0.5}
    whole = load(settings)
    write_scores(here / "s.npz", ScoreFile("el2n", whole.fingerprint, np.arange(60, dtype=np.float32)))
    pruned = load(settings, prune="s.npz", prune_share=0.5)
    assert labels(pruned) == labels(whole)[30:]


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("numbers", "not one class number per example"),
        ("maps", "not one class number"),
        ("one", "one class only"),
    ],
)
def test_targets_without_another_class_are_refused(name: str, match: str) -> None:
    assert load({"name": f"listed_data:{name}"}).train.num_examples == 60
    with pytest.raises(
        ConfigError, match=rf"data.label_noise = 0.1: .*'listed_data:{name}'.*{match}.*Set it to 0"
    ):
        load({"name": f"listed_data:{name}"}, label_noise=0.1)
