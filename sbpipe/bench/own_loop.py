"""What `for batch in loader` costs a user's own loop: its rate beside that of the bare loop over the same
ids.

This process is the user's, on one core; the selector that `sbpipe.select` starts has another. Stretches of
steps in turn, so that both meet the same noise: the bare ones train on the ids of the stretch before, indexed
one batch ahead by a thread, without selection, weights, publishing or events.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from sbpipe.bench.rows import Row
from sbpipe.config import resolve
from sbpipe.data import load_data
from sbpipe.errors import PeerLost
from sbpipe.models import build_model
from sbpipe.ownloop.loader import SelectedLoader
from sbpipe.ownloop.select import select
from sbpipe.records import Ids

PAIRS, STEPS, WARM = 15, 10, 30
START_S = 120.0
BATCH = 128


def measure() -> list[Row]:
    """The cost of a batch from the loader, as a share of a step."""
    with tempfile.TemporaryDirectory() as folder, _contest(Path(folder)) as contest:
        rows = []
        for what, are_all in (("its side threads free", False), ("its side threads on its own core", True)):
            with _one_core(are_all=are_all):
                contest.selected(WARM)
                cost = _median_cost(contest)
            words = f"cost of a batch from the loader, share of a step, {what}"
            rows.append(Row("own_loop", words, cost, "", at_most=0.01))
    return rows


def _median_cost(contest: "_Contest") -> float:
    costs = []
    for _ in range(PAIRS):
        seconds = contest.selected(STEPS)
        costs.append(seconds / contest.bare() - 1.0)
    sys.stderr.write(f"  {', '.join(f'{cost:+.3f}' for cost in costs)}\n")
    return statistics.median(costs)


def _losses(model: Any, batch: list[torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


class _Contest:
    """One model and optimizer, trained through the loader and past it."""

    def __init__(self, data: TensorDataset, model: nn.Module, folder: Path) -> None:
        self._data, self._model = data, model
        self._optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        self.loader: SelectedLoader = select(
            DataLoader(data, BATCH),
            model,
            self._optimizer,
            losses=_losses,
            run_dir=folder / "run",
            # A selector that gets no core for a moment must not count as lost.
            settings={"link.lost_after_s": 600.0},
        )
        self._batches: Iterator[Any] = iter(())
        self._ids: list[Ids] = []
        self._ahead = ThreadPoolExecutor(1)

    def selected(self, steps: int) -> float:
        """Train through the loader; seconds."""
        self._ids = []
        begin = time.perf_counter()
        for _ in range(steps):
            self._step(self._next(), through_loader=True)
        return time.perf_counter() - begin

    def _next(self) -> Any:
        batch = next(self._batches, None)
        if batch is None:
            self._batches = iter(self.loader)
            batch = next(self._batches)
        self._ids.append(self.loader.last_ids)
        return batch

    def bare(self) -> float:
        """Train on the same ids again, without any of it; seconds."""
        ids = list(self._ids)
        ahead = self._ahead.submit(self._rows, ids[0])
        ahead.result()
        begin = time.perf_counter()
        for following in [*ids[1:], ids[-1]]:
            batch, ahead = ahead.result(), self._ahead.submit(self._rows, following)
            self._step(batch, through_loader=False)
        seconds = time.perf_counter() - begin
        ahead.result()
        return seconds

    def _rows(self, ids: Ids) -> list[torch.Tensor]:
        rows = torch.from_numpy(np.array(ids))
        return [tensor[rows] for tensor in self._data.tensors]

    def _step(self, batch: Any, *, through_loader: bool) -> None:
        losses = _losses(self._model, batch)
        loss = self.loader.weigh(losses) if through_loader else losses.mean()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if through_loader:
            self._optimizer.step()
        else:
            with self.loader.detached():
                self._optimizer.step()


@contextmanager
def _contest(folder: Path) -> Iterator[_Contest]:
    """A loop with a selector that is ready; gone afterwards."""
    config = resolve({"model.name": "small_resnet", "model.options": {"depth": 8}})
    data = load_data(config.data, config.view, seed=0, device=torch.device("cpu"))
    inputs, targets = data.train.batch(np.arange(data.train.num_examples), 0)
    model = build_model(
        config.model, num_classes=data.num_classes, input_shape=data.input_shape, seed=0
    ).train()
    contest = _Contest(TensorDataset(inputs, targets), model, folder)
    with contest.loader:
        deadline = time.monotonic() + START_S
        while not contest.loader.num_selectors:
            contest.selected(1)
            if time.monotonic() > deadline:
                raise PeerLost(f"the selector of the bench was not ready after {START_S:.0f} s")
        yield contest


@contextmanager
def _one_core(*, are_all: bool) -> Iterator[None]:
    """The loop on the first core, or every thread of this process; the selector, up by now, has the last."""
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    torch.set_num_threads(1)
    for thread in os.listdir("/proc/self/task") if are_all else ["0"]:
        os.sched_setaffinity(int(thread), {min(cores)})
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, cores)
