"""A part of a data set: how many examples, which, unchanged, and that everyone draws the same."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.own_data import LISTED, enter_folder

from sbpipe.config import DataConfig, ViewConfig, resolve
from sbpipe.data import Data, load_data
from sbpipe.errors import ConfigError, DataError

NUM_TRAIN, NUM_TEST = 300, 80

OWN_DATA = f"""{LISTED}
class Numbered(Listed):
    num_classes = 300

def all_numbered(): return Numbered(numbered(range(300))), Numbered(numbered(range(80)))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ids = np.arange(NUM_TRAIN)
    inputs = ids.astype(np.float32)[:, None]
    np.savez(tmp_path / "a.npz", x_train=inputs, y_train=ids, x_test=inputs[:NUM_TEST], y_test=ids[:NUM_TEST])
    return enter_folder(tmp_path, monkeypatch, numbered_data=OWN_DATA)


def load(name: str, batch_size: int = 1, **settings: float) -> Data:
    """A data set whose inputs and targets are the ids of the whole."""
    data = DataConfig(name=name, path="a.npz" if name == "arrays" else "", workers=0, **settings)  # type: ignore[arg-type]
    return load_data(data, ViewConfig(), seed=0, device=torch.device("cpu"), batch_size=batch_size)


def ids_of(data: Data, split: str) -> list[int]:
    part = getattr(data, split)
    batch = part.batch(np.arange(part.num_examples), 0)
    assert batch.inputs[:, 0].tolist() == batch.targets.tolist(), (
        "inputs and targets of one example stay together"
    )
    return [int(target) for target in batch.targets]


@pytest.mark.parametrize("name", ["arrays", "numbered_data:all_numbered"])
def test_a_part_has_some_examples_of_the_whole_once_each_and_the_test_set_its_own(name: str) -> None:
    data = load(name, limit=40, test_limit=25)
    train, test = ids_of(data, "train"), ids_of(data, "test")
    assert (len(train), len(test)) == (40, 25)
    assert (len(set(train)), len(set(test))) == (40, 25)
    assert train == sorted(train) != list(range(40))
    assert set(test) <= set(range(NUM_TEST))
    assert data.num_classes == NUM_TRAIN, "the classes are those of the whole"


def test_every_kind_of_data_set_draws_the_same_and_another_seed_others() -> None:
    drawn = ids_of(load("arrays", limit=40), "train")
    assert drawn == ids_of(load("numbered_data:all_numbered", limit=40), "train")
    assert drawn != ids_of(load("arrays", limit=40, seed=1), "train")
    assert set(drawn) <= set(ids_of(load("arrays", limit=41), "train")), "a larger part only adds examples"


def test_the_draw_is_uniform() -> None:
    counts = np.zeros(NUM_TRAIN)
    for seed in range(100):
        counts[ids_of(load("arrays", limit=30, seed=seed), "train")] += 1
    chi_square = ((counts - 10) ** 2 / 9).sum()  # 100 draws of probability 0.1 each
    assert abs(chi_square - NUM_TRAIN) < 4 * np.sqrt(2 * NUM_TRAIN)


def test_a_part_is_another_data_set_and_a_limit_beyond_the_whole_none() -> None:
    whole, part = load("arrays"), load("arrays", limit=40)
    assert part.fingerprint != whole.fingerprint
    assert part.whole == part.fingerprint, "score files are made for the part"
    assert load("arrays", limit=NUM_TRAIN, test_limit=10_000).fingerprint == whole.fingerprint


def test_labels_are_wrong_in_the_part_by_its_own_ids() -> None:
    right, noisy = load("arrays", limit=100), load("arrays", limit=100, label_noise=0.3)
    everyone = np.arange(100)
    wrong = (right.train.batch(everyone, 0).targets != noisy.train.batch(everyone, 0).targets).sum()
    assert 15 <= int(wrong) <= 45


def test_a_part_that_does_not_fill_a_batch_or_is_negative_is_refused() -> None:
    with pytest.raises(DataError, match="its 40 training examples do not fill a batch of 64"):
        load("arrays", batch_size=64, limit=40)
    with pytest.raises(ConfigError, match=r"data\.limit"):
        resolve({"data.limit": -1})


@pytest.mark.parametrize("name", ["arrays", "numbered_data:all_numbered"])
def test_examples_held_out_are_tested_on_and_never_trained_on(name: str) -> None:
    data = load(name, validation=0.2)
    train, held_out = ids_of(data, "train"), ids_of(data, "test")
    assert (len(train), len(held_out)) == (240, 60)
    assert sorted(train + held_out) == list(range(NUM_TRAIN))
    assert ids_of(load(name, validation=60), "test") == held_out, "as a number, the same"
    assert set(ids_of(load(name, validation=60, limit=40), "train")).isdisjoint(held_out)
    assert data.fingerprint != load(name).fingerprint


def test_labels_of_examples_held_out_stay_right() -> None:
    noisy = load("arrays", validation=0.5, label_noise=0.5)
    assert len(ids_of(noisy, "test")) == 150  # ids_of checks that each target is its input


def test_a_validation_that_leaves_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(DataError, match=r"data\.validation = 300.*holds out 300 of 300"):
        load("arrays", validation=300)
