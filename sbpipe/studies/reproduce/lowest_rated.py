"""The overlap of examples that early models rate lowest and those that `sb` keeps least. Judges nothing."""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sbpipe.archives import read_npz
from sbpipe.config import resolve
from sbpipe.process.roles import run_inline
from sbpipe.records import Floats
from sbpipe.runs.names.files import EXAMPLES
from sbpipe.studies.rating import make_scores
from sbpipe.studies.reproduce.experiments.overlap import ACROSS, LEAST_USED, WITHIN, key

CNN = {"model.name": "small_cnn"}
RESNET = {"model.name": "small_resnet", "model.options": {"depth": 8}}
_RUN = {
    "mode": "inline",
    "selection.policy": "sb",
    "selection.keep": 0.5,
    "eval.every": 0.0,
    "checkpoint.every": 0,
}


@dataclass(frozen=True)
class Extent:
    """The extent of the training: settings of an `sb` run, seeds, and the ensembles of early models."""

    settings: dict[str, Any]
    seeds: int = 3
    models: int = 2
    epochs: float = 1.0
    """Epochs of each early model; those of the `sb` run are among the settings."""


def embedded() -> Extent:
    """A minute or two, on data that is always there."""
    data = {"data.name": "embedded", "data.examples": 3_000, "data.test_examples": 100}
    return Extent(data | {"optim.lr": 0.05, "train.batch_size": 32, "train.epochs": 6.0})


def from_arrays(path: str) -> Extent:
    """Some minutes, on a part of a file of arrays."""
    data = {"data.name": "arrays", "data.path": path, "data.limit": 2_000, "data.test_limit": 100}
    return Extent(data | {"optim.lr": 0.05, "train.batch_size": 32, "train.epochs": 24.0}, epochs=6.0)


def lowest(values: NDArray[Any], share: float) -> NDArray[np.float64]:
    """How much of each example is in the lowest share: 1 or 0; ties at its edge get equal fractions.

    So counts made with it are means over all ways to break the ties.
    """
    count = _count(values, share)
    edge = np.partition(values, count - 1)[count - 1]
    is_below, is_edge = values < edge, values == edge
    parts: NDArray[np.float64] = np.where(
        is_edge, (count - is_below.sum()) / is_edge.sum(), is_below.astype(np.float64)
    )
    return parts


def overlap(one: NDArray[Any], other: NDArray[Any], share: float) -> float:
    """The share of the lowest examples by one value that are lowest by the other too; `share` is chance."""
    if len(one) != len(other):
        raise ValueError(f"{len(one)} values and {len(other)}: they are not of the same examples")
    return float((lowest(one, share) * lowest(other, share)).sum() / _count(one, share))


def overlaps(shares: Sequence[float], extent: Extent) -> dict[str, list[float]]:
    """For each name of `overlap.key`, one number per seed; each seed has its own ensembles and run."""
    seeds = range(extent.seeds)
    with tempfile.TemporaryDirectory(prefix="sbpipe-overlap-") as folder:
        cnn, resnet = ([el2n(extent, model, seed, Path(folder)) for seed in seeds] for model in (CNN, RESNET))
        kept = [times_kept(extent, seed, Path(folder)) for seed in seeds]
    return compared(shares, cnn, resnet, kept)


def compared(
    shares: Sequence[float],
    cnn: Sequence[Floats],
    resnet: Sequence[Floats],
    kept: Sequence[NDArray[np.int32]],
) -> dict[str, list[float]]:
    """The overlaps by seed; the second ensemble of an architecture is that of the previous seed."""
    seeds, found = range(len(cnn)), dict[str, list[float]]()
    for share in shares:
        found[key(ACROSS, share)] = [overlap(cnn[seed], resnet[seed], share) for seed in seeds]
        # Seed 0 takes the last seed's: index -1.
        found[key(WITHIN, share)] = [overlap(cnn[seed], cnn[seed - 1], share) for seed in seeds]
        found[key(LEAST_USED, share)] = [overlap(kept[seed], cnn[seed], share) for seed in seeds]
    return found


def el2n(extent: Extent, model: dict[str, Any], seed: int, folder: Path) -> Floats:
    """The EL2N scores of all training examples, by an ensemble of this model."""
    config = resolve(extent.settings | model | {"seed": seed})
    path = folder / f"{config.model.name}-{seed}.npz"
    return make_scores(
        "el2n", config, path, models=extent.models, epochs=extent.epochs, tell=lambda _: None
    ).scores


def times_kept(extent: Extent, seed: int, folder: Path) -> NDArray[np.int32]:
    """How often an `sb` run kept each training example."""
    path = folder / f"sb-{seed}"
    config = resolve(extent.settings | CNN | _RUN | {"seed": seed})
    with _quiet():
        summary = run_inline(config, path, resume=False, overwrite=False, on_open=lambda _: None)
    if summary["status"] != "finished":  # a run takes Ctrl-C for its own end
        raise KeyboardInterrupt
    kept: NDArray[np.int32] = read_npz(path / EXAMPLES, ("times_kept",))["times_kept"]
    return kept


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the run's messages about its folder, which is temporary."""
    log = logging.getLogger("sbpipe")
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)


def _count(values: NDArray[Any], share: float) -> int:
    return max(1, round(share * len(values)))
