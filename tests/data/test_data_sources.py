import hashlib
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.own_data import enter_folder
from support.runs import HANG_S

from sbpipe.config import DataConfig, ViewConfig
from sbpipe.data import Data, load_data
from sbpipe.data.catalog import READERS
from sbpipe.errors import DataError

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]

OWN_DATA = """
import random
import numpy as np
import torch

class Random:
    num_classes = 4
    def __init__(self, n):
        self.n = n
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        noise = torch.rand(2) + random.random() + np.random.rand()
        return torch.cat([torch.tensor([float(i)]), noise.float()]), i % 4

class Images:
    classes = ["a", "b"]
    def __len__(self):
        return 30
    def __getitem__(self, i):
        rows = np.arange(9 * 8 * 3, dtype=np.int64) * (i + 7) % 251
        return rows.astype(np.uint8).reshape(9, 8, 3), i % 2

def randoms():
    return Random(50), Random(20)

def images():
    class Both:
        train, test = Images(), Images()
    return Both

def regression():
    targets = torch.ones(6, 3, dtype=torch.float64)
    values = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(6, 2), targets)
    return values, values
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter_folder(tmp_path, monkeypatch, own_data=OWN_DATA)


def load(name: str, view: ViewConfig | None = None, seed: int = 0, **changed: Any) -> Data:
    return load_data(
        DataConfig(**{"name": name, "workers": 0} | changed), view or ViewConfig(), seed=seed, device=CPU
    )


def pixels(num_examples: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (num_examples, *shape), np.uint8)


def save(path: Path, x_train: np.ndarray, **changed: np.ndarray) -> str:
    labels = np.arange(len(x_train), dtype=np.int16) % 10
    np.savez(
        path, **{"x_train": x_train, "y_train": labels, "x_test": x_train[:5], "y_test": labels[:5]} | changed
    )
    return str(path)


# --- arrays ---------------------------------------------------------------------------------------


def test_arrays_may_have_their_channels_first_last_or_not_at_all(here: Path) -> None:
    x = pixels(20, 3, 8, 9)
    first = load("arrays", path=save(here / "first.npz", x))
    last = load("arrays", path=save(here / "last.npz", x.transpose(0, 2, 3, 1)))
    grey = load("arrays", path=save(here / "grey.npz", x[:, 0]))
    assert torch.equal(first.train.batch(np.arange(20), 0).inputs, last.train.batch(np.arange(20), 0).inputs)
    assert (first.fingerprint, first.input_shape, grey.input_shape) == (
        last.fingerprint,
        (3, 8, 9),
        (1, 8, 9),
    )
    assert first.num_classes == 10


def test_float_arrays_pass_as_they_are_and_a_view_of_them_warns(here: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 7)).astype(np.float32)
    path = save(here / "floats.npz", x)
    with pytest.warns(UserWarning, match=r"view\.crop, view\.flip: no effect"):
        data = load("arrays", ViewConfig(crop=2, flip=True), path=path)
    assert np.array_equal(data.train.batch(np.array([3, 1]), 0).inputs.numpy(), x[[3, 1]])
    assert data.input_shape == (7,)


def test_targets_follow_their_examples_and_are_known_without_loading(here: Path) -> None:
    data = load("arrays", path=save(here / "a.npz", pixels(20, 3, 8, 8)))
    example_ids = np.array([13, 2, 2, 19])
    assert data.train.batch(example_ids, 0).targets.tolist() == [3, 2, 2, 9]
    assert data.train.batch(example_ids, 0).targets.dtype == torch.int64
    assert data.train.targets_of(example_ids).tolist() == [3, 2, 2, 9]  # type: ignore[union-attr]


def test_the_number_of_classes_may_be_given(here: Path) -> None:
    assert load("arrays", path=save(here / "a.npz", pixels(20, 3, 8, 8)), classes=12).num_classes == 12


def test_arrays_may_name_their_classes(here: Path) -> None:
    named = save(here / "a.npz", pixels(20, 3, 8, 8), classes=np.array(["cat", "dog"]))
    assert load("arrays", path=named).class_names == ("cat", "dog")
    assert load("arrays", path=save(here / "b.npz", pixels(20, 3, 8, 8))).class_names == ()


def test_the_clean_score_view_shows_the_same_examples_unaugmented(here: Path) -> None:
    path, example_ids = save(here / "a.npz", pixels(20, 3, 8, 8)), np.arange(20)
    clean = load("arrays", ViewConfig(crop=2, flip=True, score="clean"), path=path)
    same = load("arrays", ViewConfig(crop=2, flip=True), path=path)
    plain = load("arrays", path=path)
    assert torch.equal(clean.score.batch(example_ids, 4).inputs, plain.train.batch(example_ids, 0).inputs)
    assert torch.equal(same.score.batch(example_ids, 4).inputs, clean.train.batch(example_ids, 4).inputs)
    assert torch.equal(
        same.test.batch(example_ids[:5], 4).inputs, plain.test.batch(example_ids[:5], 0).inputs
    )


def test_ids_that_are_not_of_the_split_are_refused(here: Path) -> None:
    data = load("arrays", ViewConfig(crop=2), path=save(here / "a.npz", pixels(20, 3, 8, 8)))
    for wrong in (-1, 20):
        with pytest.raises(IndexError, match="example ids must be 0 to 19"):
            data.train.batch(np.array([0, wrong]), 0)


# --- fingerprints ---------------------------------------------------------------------------------


def test_the_fingerprint_tells_data_sets_apart_whatever_they_are_called(here: Path) -> None:
    x, moved = pixels(20, 3, 8, 8), np.arange(20) % 10
    changed = x.copy()
    changed[7] ^= 1
    paths = [
        save(here / "a.npz", x),
        save(here / "b.npz", changed),
        save(here / "c.npz", x[:19]),
        save(here / "d.npz", x, y_train=moved[::-1]),
    ]
    prints = [load("arrays", path=path).fingerprint for path in paths]
    assert len(set(prints)) == 4
    assert load("arrays", path=save(here / "elsewhere.npz", x)).fingerprint == prints[0]


def what_is_loaded(name: str) -> list[str]:
    config = DataConfig(name=name, examples=50, test_examples=20, workers=0)
    data = load_data(config, ViewConfig(cutout=2 if name == "embedded" else 0), seed=3, device=CPU)
    return [
        data.fingerprint,
        hashlib.sha256(data.train.batch(np.arange(50), 2).inputs.numpy().tobytes()).hexdigest(),
    ]


def test_two_processes_agree_and_a_killed_one_takes_its_workers_along() -> None:
    names = ["embedded", "own_data:randoms"]
    program = (
        f"import test_data_sources as t; print(*(text for name in {names} for text in "
        "t.what_is_loaded(name)))\n"
        "data = t.load('own_data:randoms', workers=2)\n"
        "print(data.train.batch(t.np.arange(3), 0).targets, data.test.batch(t.np.arange(3), 0).targets, "
        "flush=True); input()"
    )
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, [ROOT, ROOT / "tests", ROOT / "tests/data"]))
    }
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline().split() == [text for name in names for text in what_is_loaded(name)]
        assert other.stdout.readline() == "tensor([0, 1, 2]) tensor([0, 1, 2])\n"
        other.kill()
        assert other.stdout.read() == ""  # ends when the last process that holds it, a worker, has ended


# --- the user's own data sets and their workers ---------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_random_transforms_depend_on_seed_epoch_and_id_alone(workers: int) -> None:
    data, alone = load("own_data:randoms", workers=workers), load("own_data:randoms")
    example_ids, epochs = np.array([7, 3, 49, 3, 3, 0, 12]), np.array([0, 0, 0, 0, 1, 1, 1])
    batch = data.train.batch(example_ids, epochs)
    each = torch.cat([alone.train.batch(example_ids[i : i + 1], int(epochs[i])).inputs for i in range(7)])
    data.train.close()
    assert torch.equal(batch.inputs, each)
    assert batch.targets.tolist() == [3, 3, 1, 3, 3, 0, 0]
    assert torch.equal(batch.inputs[1], batch.inputs[3])
    assert not torch.equal(batch.inputs[3], batch.inputs[4])
    assert not torch.equal(
        load("own_data:randoms", seed=1).train.batch(example_ids, epochs).inputs, batch.inputs
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_leaves_the_global_generators_as_they_were(workers: int) -> None:
    states = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index]
    data = load("own_data:randoms", workers=workers)
    data.train.batch(np.arange(10), 0)
    data.train.close()
    assert [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()] == states  # type: ignore[index]


def test_workers_answer_requests_of_any_size_one_after_the_other() -> None:
    data = load("own_data:randoms", workers=2)
    for size in (1, 2, 50, 3, 0, 7, 1, 50):
        example_ids = np.random.default_rng(size).permutation(50)[:size]
        assert data.train.batch(example_ids, 0).inputs[:, 0].tolist() == example_ids.tolist()
        assert data.test.batch(example_ids % 20, 0).inputs[:, 0].tolist() == (example_ids % 20).tolist()
    data.train.close()
    data.test.close()


def test_threads_may_share_the_workers() -> None:
    data, got = load("own_data:randoms", workers=2), {}

    def ask(first: int) -> None:
        got[first] = [
            data.train.batch(np.arange(first, first + 5), 0).inputs[:, 0].tolist() for _ in range(5)
        ]

    threads = [threading.Thread(target=ask, args=(first,)) for first in (0, 10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=HANG_S)
    data.train.close()
    assert got == {first: [list(range(first, first + 5))] * 5 for first in (0, 10, 20)}


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_workers_start_with_the_first_batch_and_close_stops_them() -> None:
    before = children()
    data = load("own_data:randoms", workers=2)
    assert children() == before
    data.train.batch(np.arange(4), 0)
    assert len(children() - before) == 2
    data.train.close()
    assert children() == before
    assert data.train.batch(np.array([5]), 0).inputs[0, 0] == 5
    data.train.close()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_killed_worker_is_an_error_and_the_next_batch_has_new_workers() -> None:
    before = children()
    data = load("own_data:randoms", workers=2)
    data.train.batch(np.arange(4), 0)
    os.kill(int((children() - before).pop()), signal.SIGKILL)
    with pytest.raises(
        DataError, match=r"train examples: a loader process died \(exit code -9.*data\.workers=0"
    ):
        data.train.batch(np.arange(4), 0)
    assert data.train.batch(np.arange(4), 0).inputs[:, 0].tolist() == [0, 1, 2, 3]
    data.train.close()


def test_images_of_a_loader_get_the_same_view_as_images_in_memory(here: Path) -> None:
    view = ViewConfig(crop=2, flip=True, normalise=False)
    loaded = load("own_data:images", view, workers=2)
    images = np.stack([np.arange(9 * 8 * 3).reshape(9, 8, 3) * (i + 7) % 251 for i in range(30)]).astype(
        np.uint8
    )
    held = load("arrays", view, path=save(here / "a.npz", images))
    example_ids, epochs = np.arange(30)[::-1], np.arange(30) % 2
    batch, expected = (
        loaded.train.batch(example_ids, epochs).inputs,
        held.train.batch(example_ids, epochs).inputs,
    )
    loaded.train.close()
    assert (loaded.num_classes, loaded.input_shape) == (2, (3, 9, 8))
    assert torch.equal(batch, expected)


def test_float_targets_are_outputs_not_classes() -> None:
    data = load("own_data:regression")
    batch = data.train.batch(np.array([5, 0]), 0)
    assert batch.inputs.tolist() == [[10.0, 11.0], [0.0, 1.0]]
    assert (batch.targets.dtype, tuple(batch.targets.shape), data.num_classes) == (torch.float32, (2, 3), 3)
    assert data.train.targets_of(np.array([0])) is None


# --- files in the formats of their owners ---------------------------------------------------------


def write_cifar(
    folder: Path, monkeypatch: pytest.MonkeyPatch, class_name: str, labels_key: str
) -> np.ndarray:
    from torchvision import datasets

    kind, rows = getattr(datasets, class_name), pixels(8, 3072)
    files = {"train_batch": rows[:6], "test_batch": rows[6:]}
    (folder / kind.base_folder).mkdir(parents=True)

    def write(name: str, entry: dict[str, Any]) -> str:
        content = pickle.dumps(entry, protocol=2)
        (folder / kind.base_folder / name).write_bytes(content)
        return hashlib.md5(content).hexdigest()

    sums = {
        name: write(name, {"data": part, labels_key: list(range(len(part)))}) for name, part in files.items()
    }
    meta = kind.meta | {"md5": write(kind.meta["filename"], {kind.meta["key"]: ["a", "b"]})}
    monkeypatch.setattr(kind, "train_list", [["train_batch", sums["train_batch"]]])
    monkeypatch.setattr(kind, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(kind, "meta", meta)
    return rows.reshape(8, 3, 32, 32)


@pytest.mark.parametrize(
    ("name", "class_name", "labels_key", "num_classes"),
    [("cifar10", "CIFAR10", "labels", 10), ("cifar100", "CIFAR100", "fine_labels", 100)],
)
def test_cifar_is_read_in_its_own_format(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str, class_name: str, labels_key: str, num_classes: int
) -> None:
    images = write_cifar(here / "root", monkeypatch, class_name, labels_key)
    data = load(name, ViewConfig(normalise=False), path=str(here / "root"), download=True)
    batch = data.train.batch(np.arange(6), 0)
    assert np.array_equal(np.rint(batch.inputs.numpy() * 255), images[:6])
    assert np.array_equal(np.rint(data.test.batch(np.arange(2), 0).inputs.numpy() * 255), images[6:])
    assert (batch.targets.tolist(), data.num_classes) == ([0, 1, 2, 3, 4, 5], num_classes)
    assert data.class_names == ("a", "b")


def write_idx(folder: Path, images: np.ndarray, labels: np.ndarray, prefix: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(
        struct.pack(">IIII", 2051, *images.shape) + images.tobytes()
    )
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(
        struct.pack(">II", 2049, len(labels)) + labels.astype(np.uint8).tobytes()
    )


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_is_read_in_its_own_format(here: Path, name: str, folder: str) -> None:
    images = pixels(7, 28, 28)
    write_idx(here / folder / "raw", images[:5], np.arange(5), "train")
    write_idx(here / folder / "raw", images[5:], np.array([9, 8]), "t10k")
    data = load(name, ViewConfig(normalise=False), path=str(here))
    assert np.array_equal(np.rint(data.train.batch(np.arange(5), 0).inputs.numpy() * 255), images[:5, None])
    assert data.test.batch(np.arange(2), 0).targets.tolist() == [9, 8]
    assert (data.input_shape, data.num_classes) == ((1, 28, 28), 10)


def test_svhn_is_read_in_its_own_format(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    from torchvision.datasets import SVHN

    images, lists = pixels(7, 32, 32, 3), {}
    for split, part in (("train", images[:5]), ("test", images[5:])):
        scipy_io.savemat(
            here / f"{split}.mat",
            {"X": part.transpose(1, 2, 3, 0), "y": np.array([[10], [1], [2], [3], [4]])[: len(part)]},
        )
        lists[split] = ["", f"{split}.mat", hashlib.md5((here / f"{split}.mat").read_bytes()).hexdigest()]
    monkeypatch.setattr(SVHN, "split_list", lists)
    data = load("svhn", ViewConfig(normalise=False), path=str(here))
    assert np.array_equal(
        np.rint(data.train.batch(np.arange(5), 0).inputs.numpy() * 255), images[:5].transpose(0, 3, 1, 2)
    )
    assert data.train.batch(np.arange(5), 0).targets.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("test_folder", ["val", "test"])
def test_an_image_folder_is_squared_resized_and_labelled_by_folder(here: Path, test_folder: str) -> None:
    colours = {"blue": (0, 0, 200), "red": (200, 0, 0)}
    for split in ("train", test_folder):
        for name, colour in colours.items():
            (here / split / name).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (40 + number, 30), colour).save(here / split / name / f"{number}.png")
    data = load("image_folder", ViewConfig(normalise=False), path=str(here), image_size=16, workers=1)
    batch = data.train.batch(np.array([4, 0]), 0)
    data.train.close()
    assert (data.input_shape, data.num_classes, data.train.num_examples) == ((3, 16, 16), 2, 6)
    assert data.class_names == ("blue", "red")
    assert batch.targets.tolist() == [1, 0]
    assert batch.inputs[:, :, 7, 7].mul(255).round().tolist() == [[200, 0, 0], [0, 0, 200]]
    assert data.train.targets_of(np.arange(6)).tolist() == [0, 0, 0, 1, 1, 1]  # type: ignore[union-attr]


def test_every_data_set_that_the_config_promises_is_in_the_catalog() -> None:
    promised = DataConfig.__dataclass_fields__["name"].metadata["meaning"].replace(" or ", ", ").split(", ")
    assert set(promised) == {*READERS, "module:function"}
