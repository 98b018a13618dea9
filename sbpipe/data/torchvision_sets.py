"""The named data sets that torchvision reads, held in memory as a whole. It must not know their use."""

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbpipe.config import DataConfig
from sbpipe.data.arrays import array_content
from sbpipe.data.cache import cache_folder
from sbpipe.data.content import Contents, data_error, names_in

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Known(NamedTuple):
    """Torchvision's names of a data set, its splits and labels, and what else must be installed."""

    class_name: str
    num_classes: int
    train: tuple[str, Any] = ("train", True)
    test: tuple[str, Any] = ("train", False)
    labels: str = "targets"
    needs: str = ""


KNOWN = {
    "cifar10": Known("CIFAR10", 10),
    "cifar100": Known("CIFAR100", 100),
    "svhn": Known("SVHN", 10, ("split", "train"), ("split", "test"), "labels", "scipy"),
    "mnist": Known("MNIST", 10),
    "fashion_mnist": Known("FashionMNIST", 10),
}


def reader(name: str) -> Callable[[DataConfig], Contents]:
    """The function that reads one of KNOWN."""
    return lambda data: read_torchvision(data, KNOWN[name])


def read_torchvision(data: DataConfig, known: Known) -> Contents:
    """The contents of the folder `data.path` (by default one in the cache), downloaded if so configured."""
    if known.needs and importlib.util.find_spec(known.needs) is None:
        raise data_error(
            "data.name",
            data.name,
            f"torchvision needs {known.needs} to read it",
            f"Install it: pip install {known.needs}",
        )
    root = Path(data.path).expanduser() if data.path else cache_folder() / "datasets"
    num_classes = data.classes or known.num_classes
    try:
        with _alone(root) if data.download else nullcontext():
            train, test = (_dataset(known, root, split, data.download) for split in (known.train, known.test))
    except (RuntimeError, OSError, ValueError, EOFError, KeyError, AssertionError) as error:
        way_out = (
            "Check the network, or put the files there by hand"
            if data.download
            else "Set data.path to where it lies, or --set data.download=true"
        )
        raise data_error(
            "data.name", data.name, f"not readable in {str(root)!r} ({error})", way_out
        ) from None
    return Contents(
        array_content(*_arrays(known, train), name="train", num_classes=num_classes),
        array_content(*_arrays(known, test), name="test", num_classes=num_classes),
        num_classes,
        known.num_classes,
        names_in(getattr(train, "classes", None)),
    )


def _dataset(known: Known, root: Path, split: tuple[str, Any], download: bool) -> Any:
    # Imported here: torchvision takes a second, which other data sets do not need to spend.
    import torchvision  # type: ignore[import-untyped]

    with warnings.catch_warnings():
        # The official CIFAR files were pickled by an old NumPy, which new versions warn about.
        warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
        return getattr(torchvision.datasets, known.class_name)(str(root), download=download, **dict([split]))


def _arrays(known: Known, dataset: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    return np.asarray(dataset.data), np.asarray(getattr(dataset, known.labels))


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Let only one process download: both roles of a run may start at the same time, and one must wait."""
    root.mkdir(parents=True, exist_ok=True)
    with open(root / ".sbpipe-download.lock", "w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
