"""Ranks for tests: processes that meet over a file, without torchrun and the seconds it takes to start."""

import contextlib
import multiprocessing
import pickle
import queue
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sbpipe.config import Config
from sbpipe.machine.place import Place
from sbpipe.process import roles, selector_settings
from sbpipe.trainer.checkpoint import Checkpoints
from support.runs import HANG_S, select_for, summary_of

PROCESSES = multiprocessing.get_context("forkserver")

Run = tuple[Config, Path]


def plain_net(num_classes: int, input_shape: tuple[int, ...], width: int = 8) -> nn.Module:
    """A net without BatchNorm: its statistics would be those of a share, not of the batch."""
    convs = [nn.Conv2d(input_shape[0], width, 3, stride=2), nn.ReLU(), nn.Conv2d(width, width, 3, stride=2)]
    return nn.Sequential(
        *convs, nn.ReLU(), nn.Flatten(), nn.Linear(width * _side(input_shape) ** 2, num_classes)
    )


def _side(input_shape: tuple[int, ...]) -> int:
    side = input_shape[-1]
    for _ in range(2):
        side = (side - 3) // 2 + 1
    return side


def in_ranks(function: Callable[..., Any], *arguments: Any, world: int = 2) -> list[Any]:
    """What a function returns in each of some processes that share a default group: f(place, *arguments)."""
    with (
        tempfile.TemporaryDirectory() as folder,
        _started(function, arguments, world, folder) as (ranks, told),
    ):
        found: dict[int, Any] = {}
        while len(found) < world:
            rank, value, error = _word_of(ranks, told)
            assert not error, error
            found[rank] = pickle.loads(value)
        for process in ranks:
            process.join(HANG_S)
    return [found[rank] for rank in range(world)]


def _word_of(ranks: list[Any], told: Any) -> tuple[int, bytes, str]:
    """The next rank's last word; an error if they end without one, as they do before they are themselves."""
    give_up = time.monotonic() + HANG_S
    while time.monotonic() < give_up:
        have_ended = not any(process.is_alive() for process in ranks)
        with contextlib.suppress(queue.Empty):
            word: tuple[int, bytes, str] = told.get(timeout=1.0)
            return word
        if have_ended:
            return -1, b"", f"the ranks ended with codes {[process.exitcode for process in ranks]}"
    return -1, b"", f"the ranks said nothing for {HANG_S:.0f} s"


@contextlib.contextmanager
def _started(
    function: Callable[..., Any], arguments: tuple[Any, ...], world: int, folder: str
) -> Iterator[tuple[list[Any], Any]]:
    told = PROCESSES.Queue()
    places = [Place(rank, world, rank, world) for rank in range(world)]
    ranks = [
        PROCESSES.Process(target=_be, args=(place, f"file://{folder}/meeting", told, function, arguments))
        for place in places
    ]
    for process in ranks:
        process.start()
    try:
        yield ranks, told
    finally:
        for process in ranks:
            process.kill()


def _be(
    place: Place, meeting: str, told: Any, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    wait = timedelta(seconds=HANG_S)
    try:
        torch.distributed.init_process_group(
            "gloo", init_method=meeting, rank=place.rank, world_size=place.world, timeout=wait
        )
        # Pickled here: a queue would send tensors as handles of this process, which ends.
        told.put((place.rank, pickle.dumps(function(place, *arguments)), ""))
        torch.distributed.destroy_process_group()
    except BaseException:  # noqa: BLE001 - the top of a process: the test raises it again
        told.put((place.rank, b"", f"rank {place.rank}: {traceback.format_exc()}"))


def train_ranks(config: Config, path: Path, *, resume: bool = False) -> dict[str, Any]:
    """A run of several ranks, and of a selector where its mode has one."""
    return train_all([(config, path)], resume=resume)[0]


def train_all(runs: Sequence[Run], *, resume: bool = False) -> list[dict[str, Any]]:
    """Runs of as many ranks each, one after the other in the same processes."""
    others = []
    for config, path in runs:
        if not config.is_one_process:
            given = selector_settings(config) | {"link.connect": str(path)}
            others.append(PROCESSES.Process(target=select_for, args=(given,), daemon=True))
            others[-1].start()
    try:
        in_ranks(_train, list(runs), resume, world=runs[0][0].num_ranks)
    finally:
        for selector in others:
            selector.kill()
    return [summary_of(path) for _, path in runs]


def _train(place: Place, runs: list[Run], resume: bool) -> None:
    for config, path in runs:
        train_one(place, config, path, resume=resume)


def train_one(place: Place, config: Config, path: Path, *, resume: bool = False) -> None:
    """Be a rank of a run."""
    role = roles.run_inline if config.is_one_process else roles.run_trainer
    role(config, path, resume=resume, overwrite=False, on_open=lambda run_dir: None, place=place)


def weights_in(path: Path) -> dict[str, torch.Tensor]:
    """The weights of a run's last checkpoint."""
    state = Checkpoints(path / "checkpoints").load_newest()
    assert state is not None
    return dict(state["model"])


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference between two sets of weights."""
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)
