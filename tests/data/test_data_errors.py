import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.own_data import LISTED, enter_folder

from sbpipe.config import DataConfig, ViewConfig
from sbpipe.data import Data, load_data
from sbpipe.data.arrays import ArrayContent
from sbpipe.errors import ConfigError, DataError, DeviceError

CPU = torch.device("cpu")

BAD_DATA = f"""{LISTED}
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield 1, 2

class Unnamed(Listed):
    num_classes = 0

def both(*items, kind=Listed):
    return kind(items), kind(items)

x = torch.zeros(2)
def stream(): return Stream(), Stream()
def empty(): return both()
def nothing(): return None
def bare_inputs(): return both(x, x, x)
def words(): return both(("a word", 0))
def word_targets(): return both((x, "cat"))
def second(item): return both((x, 0), item, *[(x, 0)] * 18)
def of_two_shapes(): return second((torch.zeros(3), 1))
def of_two_types(): return second((x.half(), 1))
def out_of_range(): return second((x, 3))
def out_of_range_at_once(): return both((x, -1))
def broken(): return second(ValueError("the disc is on fire"))
def unnumbered(): return both((x, 0), kind=Unnamed)
def channels_last(): return both((torch.zeros(8, 9, 3), 0))
def flat_bytes(): return both((torch.zeros(5, dtype=torch.uint8), 0))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter_folder(tmp_path, monkeypatch, bad_data=BAD_DATA)


def load(name: str, batch_size: int = 1, **changed: Any) -> Data:
    return load_data(
        DataConfig(**{"name": name, "workers": 0} | changed),
        ViewConfig(),
        seed=0,
        device=CPU,
        batch_size=batch_size,
    )


def good_arrays() -> dict[str, np.ndarray]:
    x, y = np.zeros((12, 3, 8, 8), np.uint8), np.arange(12) % 4
    return {"x_train": x, "y_train": y, "x_test": x[:4], "y_test": y[:4]}


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "nearest"), [("cifra10", "cifar10"), ("FashionMNIST", "fashion_mnist"), ("zzz", "")]
)
def test_an_unknown_name_is_told_the_nearest_known_one(given: str, nearest: str) -> None:
    with pytest.raises(
        DataError,
        match=f"data.name = '{given}': there is no such data set.*nearest known name is "
        f"'{nearest}.*module:function",
    ):
        load(given)


# --- arrays ---------------------------------------------------------------------------------------


def test_good_arrays_are_accepted(here: Path) -> None:
    np.savez(here / "good.npz", **good_arrays())
    assert load("arrays", path=str(here / "good.npz"), batch_size=12).num_classes == 4


X, FLOATS = good_arrays()["x_train"], np.zeros((12, 5), np.float32)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        (
            {"x_train": X.astype(np.float64)},
            r"x_train is float64 of shape \(12, 3, 8, 8\).*astype\('float32'\)",
        ),
        ({"x_train": X.astype(np.int64)}, "x_train is int64 of shape"),
        ({"x_train": np.zeros(12, np.float32)}, r"x_train is float32 of shape \(12,\)"),
        (
            {"x_train": X.reshape(12, -1)},
            r"x_train is uint8 of shape \(12, 192\): images must have axes NCHW",
        ),
        ({"x_train": X[:, :, :0]}, r"x_train is uint8 of shape \(12, 3, 0, 8\)"),
        ({"y_train": np.arange(11)}, r"x_train has shape \(12, 3, 8, 8\) but y_train has 11 labels"),
        ({"y_train": np.zeros(12)}, "y_train: labels must be one whole number per example, not float64"),
        ({"y_train": np.zeros((12, 2), int)}, r"y_train: labels must be .* shape \(12, 2\)"),
        (
            {"y_train": np.array([0] * 7 + [-1] * 5)},
            r"y_train\[7\] = -1: labels must be 0 or more, and 5 of 12 are not",
        ),
        ({"x_train": X[:0], "y_train": np.arange(0)}, "x_train is empty"),
        ({"x_test": X[:0], "y_test": np.arange(0)}, "x_test is empty"),
        (
            {"x_test": X[:4, :, :7]},
            r"training examples have inputs of shape \(3, 8, 8\), test examples \(3, 7, 8\)",
        ),
        (
            {"x_test": X[:4].astype(np.float32)},
            "training examples have uint8 images True, test examples False",
        ),
        (
            {"x_train": np.where(np.eye(12, 5, -5) == 1, np.float32("nan"), FLOATS), "x_test": FLOATS[:4]},
            r"x_train\[5\] holds NaN",
        ),
        ({"x_train": np.array([None] * 12)}, "unreadable or cut short.*none of dtype object"),
    ],
)
def test_arrays_of_the_wrong_form_are_refused(here: Path, changed: dict[str, np.ndarray], match: str) -> None:
    np.savez(here / "bad.npz", **good_arrays() | changed)
    with pytest.raises(DataError, match=match):
        load("arrays", path=str(here / "bad.npz"))


def test_labels_beyond_the_given_classes_are_named(here: Path) -> None:
    np.savez(here / "a.npz", **good_arrays())
    with pytest.raises(
        DataError, match=r"a.npz.*y_train\[3\] = 3: labels must be 0 to 2, and 3 of 12 are not.*data.classes"
    ):
        load("arrays", path=str(here / "a.npz"), classes=3)


@pytest.mark.parametrize("missing", ["x_train", "y_train", "x_test", "y_test"])
def test_a_missing_array_is_named(here: Path, missing: str) -> None:
    np.savez(here / "a.npz", **{key: value for key, value in good_arrays().items() if key != missing})
    with pytest.raises(DataError, match=f"data.path = .*a.npz': the array {missing} is missing"):
        load("arrays", path=str(here / "a.npz"))


@pytest.mark.parametrize("keep", [0, 10, 500, 4000])
def test_a_file_cut_short_is_refused(here: Path, keep: int) -> None:
    np.savez(here / "a.npz", **good_arrays())
    (here / "a.npz").write_bytes((here / "a.npz").read_bytes()[:keep])
    with pytest.raises(DataError, match=r"the file is unreadable or cut short.*Write the file again"):
        load("arrays", path=str(here / "a.npz"))


def test_a_single_array_is_not_a_data_set(here: Path) -> None:
    np.save(here / "a.npy", np.zeros(3))
    with pytest.raises(DataError, match="one array, not an archive"):
        load("arrays", path=str(here / "a.npy"))


@pytest.mark.parametrize(
    ("path", "match"), [("", "Set data.path to an .npz file"), ("none.npz", r"no such file.*numpy.savez")]
)
def test_arrays_that_are_not_there_are_refused(path: str, match: str) -> None:
    with pytest.raises(DataError, match=match):
        load("arrays", path=path)


def test_a_training_split_must_fill_a_batch() -> None:
    with pytest.raises(
        DataError, match=r"its 20 training examples do not fill a batch of 32.*train.batch_size to at most 20"
    ):
        load("embedded", batch_size=32, examples=20, test_examples=5)


def test_a_view_too_large_for_the_images_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"view.crop = 32"):
        load_data(DataConfig(examples=20, test_examples=5), ViewConfig(crop=32), seed=0, device=CPU)


def test_too_little_memory_is_an_error_that_names_the_size() -> None:
    endless = ArrayContent(
        np.broadcast_to(np.zeros((1, 3, 32, 32), np.uint8), (10**13, 3, 32, 32)), np.zeros(1, np.int64)
    )
    with pytest.raises(DeviceError, match="device 'cpu': its memory does not hold the 45,776,367,188 MiB"):
        endless.place(CPU, margin=4, seed=0)


# --- torchvision's files --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "fashion_mnist"])
def test_a_data_set_that_is_not_there_says_how_to_get_it(here: Path, name: str) -> None:
    with pytest.raises(
        DataError, match=f"data.name = '{name}': not readable in '{here}/none'.*--set data.download=true"
    ):
        load(name, path=str(here / "none"))


def test_a_download_that_fails_says_why(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchvision.datasets.CIFAR10.url", f"file://{here}/none.tar.gz")
    with pytest.raises(
        DataError, match=r"data.name = 'cifar10': not readable in .*No such file.*Check the network"
    ):
        load("cifar10", path=str(here / "new"), download=True)


def test_a_cut_idx_file_is_refused(here: Path) -> None:
    (here / "MNIST" / "raw").mkdir(parents=True)
    for prefix in ("train", "t10k"):
        (here / "MNIST" / "raw" / f"{prefix}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 2051, 5, 28, 28) + bytes(100)
        )
        (here / "MNIST" / "raw" / f"{prefix}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 2049, 5) + bytes(5)
        )
    with pytest.raises(DataError, match=r"data.name = 'mnist': not readable in"):
        load("mnist", path=str(here))


def test_svhn_without_scipy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(DataError, match=r"torchvision needs scipy to read it. Install it: pip install scipy"):
        load("svhn")


# --- image folders --------------------------------------------------------------------------------


def folder(root: Path, *classes: str) -> None:
    for name in classes:
        (root / name).mkdir(parents=True)
        Image.new("RGB", (9, 9)).save(root / name / "0.png")


def no_test(root: Path) -> None:
    folder(root / "train", "cat")


def no_train(root: Path) -> None:
    folder(root / "val", "cat")


def other_classes(root: Path) -> None:
    folder(root / "train", "cat", "dog")
    folder(root / "val", "cat", "fish")


def no_images(root: Path) -> None:
    (root / "train" / "cat").mkdir(parents=True)
    folder(root / "val", "cat")


def no_class(root: Path) -> None:
    (root / "train").mkdir(parents=True)
    folder(root / "val", "cat")


def broken_image(root: Path) -> None:
    folder(root / "train", "cat")
    folder(root / "val", "cat")
    (root / "train" / "cat" / "0.png").write_bytes(b"not an image")


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (no_test, "the folder has no val/ or test/"),
        (no_train, "the folder has no train/"),
        (other_classes, r"train/ and val/ differ in their class folders \(dog, fish\)"),
        (no_images, r"no classes of images here \(Found no valid file for the classes cat"),
        (no_class, "no classes of images here"),
        (broken_image, "image '.*0.png' cannot be read.*Repair it or remove it"),
    ],
)
def test_an_image_folder_of_the_wrong_form_is_refused(
    here: Path, make: Callable[[Path], None], match: str
) -> None:
    make(here / "images")
    with pytest.raises(DataError, match=match):
        load("image_folder", path=str(here / "images"), image_size=8)


@pytest.mark.parametrize("path", ["", "nowhere"])
def test_an_image_folder_that_is_not_there_is_refused(path: str) -> None:
    with pytest.raises(DataError, match=f"data.path = '{path}': there is no such folder.*train/ and val/"):
        load("image_folder", path=path)


@pytest.mark.parametrize("shape", [(12, 8, 8, 3), (12, 8, 6, 1), (12, 5, 9, 4)])
def test_float_arrays_with_their_channels_last_are_refused_with_the_fix(
    here: Path, shape: tuple[int, ...]
) -> None:
    arrays = good_arrays() | {
        "x_train": np.zeros(shape, np.float32),
        "x_test": np.zeros(shape, np.float32)[:4],
    }
    np.savez(here / "a.npz", **arrays)
    with pytest.raises(DataError, match=r"x_train .*channels last.*Store x_train\.transpose\(0, 3, 1, 2\)"):
        load("arrays", path=str(here / "a.npz"))
    arrays["x_train"], arrays["x_test"] = (
        arrays[name].transpose(0, 3, 1, 2) for name in ("x_train", "x_test")
    )
    np.savez(here / "a.npz", **arrays)
    assert load("arrays", path=str(here / "a.npz")).input_shape == (shape[3], *shape[1:3])


# --- the user's own -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("bad_data:nothing", r"the function returned NoneType. It must return \(train, test\)"),
        ("bad_data:stream", "train data set is a Stream without __len__.*map-style"),
        ("bad_data:empty", "the train data set is empty"),
        ("bad_data:bare_inputs", r"train example 0 is torch.float32 of shape \(2,\): not a pair"),
        ("bad_data:words", "train example 0 has the input str 'a word'. Each item must be a pair"),
        ("bad_data:word_targets", "train example 0 has the target str 'cat'"),
        ("bad_data:out_of_range_at_once", r"train targets\[0\] = -1: labels must be 0 to 2"),
        (
            "bad_data:unnumbered",
            "how many classes it has is not known. Set data.classes .* num_classes .* or classes",
        ),
        (
            "bad_data:channels_last",
            r"train data set has inputs of shape \(8, 9, 3\).*channels last.*permute\(2, 0, 1\)",
        ),
        (
            "bad_data:flat_bytes",
            r"train example 0 has the input torch.uint8 of shape \(5,\): uint8 inputs are images",
        ),
    ],
)
def test_an_own_data_set_of_the_wrong_form_is_refused_before_training(name: str, match: str) -> None:
    with pytest.raises(DataError, match=match):
        load(name)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("name", "match"),
    [
        (
            "of_two_shapes",
            r"train example 1 has the input torch.float32 of shape \(3,\), but the first one torch.float32 "
            r"of shape \(2,\)",
        ),
        ("of_two_types", "train example 1 has the input torch.float16"),
        ("out_of_range", r"train targets\[1\] = 3: labels must be 0 to 2"),
        (
            "broken",
            "train example 1 could not be read by the data set itself:\nTraceback(.|\n)*ValueError: the disc "
            "is on fire",
        ),
    ],
)
def test_an_example_of_the_wrong_form_is_named_and_the_others_can_still_be_read(
    name: str, match: str, workers: int
) -> None:
    data = load(f"bad_data:{name}", workers=workers)
    with pytest.raises(DataError, match=match):
        data.train.batch(np.array([0, 1]), 0)
    assert data.train.batch(np.array([0]), 0).targets.tolist() == [0]
    data.train.close()
