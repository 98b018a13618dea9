import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sbpipe.config import DataConfig, ViewConfig
from sbpipe.data import Data, catalog, load_data
from sbpipe.data.content import Contents
from sbpipe.data.embedded import draw, read_embedded
from sbpipe.data.painter import Draws
from sbpipe.errors import DataError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sbpipe"


def small(**changed: float) -> DataConfig:
    return DataConfig(**{"examples": 200, "test_examples": 100, "workers": 0} | changed)  # type: ignore[arg-type]


def pixels_of(contents: Contents) -> bytes:
    return contents.train.inputs.tobytes() + contents.test.inputs.tobytes()  # type: ignore[attr-defined]


def test_every_machine_paints_the_same_bytes() -> None:
    arrays = draw("train", 300, seed=0)
    digest = hashlib.sha256(arrays["images"].tobytes() + arrays["labels"].tobytes()).hexdigest()
    assert digest == "6e893ca07744410fea5132b9878553da9f72af86b0f6d607c2c9a63fa458d9ae", (
        "raise _FORMAT of embedded.py when the painting changes, or old caches stay in use"
    )


def test_an_example_is_the_same_whatever_the_number_of_examples() -> None:
    few, many = draw("train", 37, seed=3), draw("train", 300, seed=3)
    assert np.array_equal(few["images"], many["images"][:37])
    assert np.array_equal(few["labels"], many["labels"][:37])


def test_splits_and_seeds_share_no_image() -> None:
    streams = [draw(split, 300, seed)["images"] for split in ("train", "test") for seed in (0, 1)]
    images = {image.tobytes() for stream in streams for image in stream}
    assert len(images) == 1200


def test_classes_are_equally_likely() -> None:
    labels = Draws(0, "train", np.arange(20_000)).whole("digit", 10)
    assert np.bincount(labels, minlength=10).min() > 1850
    assert np.array_equal(labels[:50], draw("train", 50, seed=0)["labels"])


def test_most_examples_are_easy_and_a_tail_is_hard() -> None:
    difficulty = Draws(0, "train", np.arange(20_000)).difficulty()
    assert (difficulty < 1 / 8).mean() > 0.48
    assert 0.07 < (difficulty > 3 / 4).mean() < 0.12


def test_label_noise_touches_training_labels_only() -> None:
    clean, noisy = catalog.read(small()), catalog.read(small(label_noise=0.5))
    assert pixels_of(clean) == pixels_of(noisy)
    assert not np.array_equal(clean.train.labels, noisy.train.labels)  # type: ignore[attr-defined]
    assert np.array_equal(clean.test.labels, noisy.test.labels)  # type: ignore[attr-defined]


def test_what_comes_from_the_cache_is_what_was_painted(cache: Path) -> None:
    painted = pixels_of(read_embedded(small()))
    written = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert pixels_of(read_embedded(small())) == painted
    assert {path.name: path.stat().st_mtime_ns for path in cache.iterdir()} == written
    assert len(written) == 2


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def forget_the_labels(path: Path) -> None:
    np.savez(path, images=np.zeros((200, 3, 32, 32), np.uint8))


def shorten(path: Path) -> None:
    np.savez(path, images=np.zeros((1, 3, 32, 32), np.uint8), labels=np.zeros(1, np.int64))


def paint_otherwise(path: Path) -> None:
    with np.load(path) as archive:
        np.savez(path, images=archive["images"] // 2, labels=archive["labels"])


@pytest.mark.parametrize("harm", [truncate, flip_a_bit, empty, forget_the_labels, shorten, paint_otherwise])
def test_a_harmed_cache_file_is_made_again(cache: Path, harm: Callable[[Path], None]) -> None:
    painted = pixels_of(read_embedded(small()))
    for path in cache.iterdir():
        harm(path)
    assert pixels_of(read_embedded(small())) == painted
    written = [path.read_bytes() for path in sorted(cache.iterdir())]
    assert pixels_of(read_embedded(small())) == painted
    assert [path.read_bytes() for path in sorted(cache.iterdir())] == written


def test_a_cache_that_cannot_be_written_only_warns(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="not cached"):
        contents = read_embedded(small())
    assert contents.train.num_examples == 200


def test_a_failed_write_leaves_nothing_behind(cache: Path) -> None:
    (cache / "embedded-v2-train-200-seed0.npz").mkdir(parents=True)
    with pytest.warns(UserWarning, match="not cached"):
        read_embedded(small())
    assert sorted(path.name for path in cache.iterdir()) == [
        "embedded-v2-test-100-seed0.npz",
        "embedded-v2-train-200-seed0.npz",
    ]


def test_too_few_classes_for_ten_digits_are_refused() -> None:
    with pytest.raises(DataError, match=r"y_train\[\d+\] = \d: labels must be 0 to 6.*data.classes"):
        read_embedded(small(classes=7))


@pytest.fixture
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained(data: Data, num_steps: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [
            nn.Conv2d(3, 12, 5, 2, 2),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, 2, 1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
        ]
        network = nn.Sequential(
            *layers,
            nn.Conv2d(24, 48, 3, 2, 1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(768, 10),
        )
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for step in range(num_steps):
        batch = data.train.batch(np.arange(step * 64, step * 64 + 64) % data.train.num_examples, 0)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(batch.inputs), batch.targets).backward()
        optimizer.step()
    return network.eval()


@pytest.mark.usefixtures("_one_thread")
@pytest.mark.slow
def test_easy_examples_are_learned_quickly_and_hard_ones_are_not() -> None:
    data = load_data(DataConfig(examples=4000, test_examples=1000), ViewConfig(), seed=0, device=CPU)
    network = trained(data, num_steps=120)
    batch = data.test.batch(np.arange(1000), 0)
    with torch.no_grad():
        is_right = (network(batch.inputs).argmax(1) == batch.targets).numpy()
    difficulty = Draws(0, "test", np.arange(1000)).difficulty().ravel()
    assert is_right[difficulty < 0.1].mean() > 0.9
    assert is_right[difficulty > 0.7].mean() < 0.7
