"""Runs of both roles on simulated devices, with what each of them saw there."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from support import runs

import simulated
from sbpipe.config import Config, resolve
from sbpipe.process import roles, selector_settings
from sbpipe.records import Lease, Selection
from sbpipe.selector.answer import Selector
from sbpipe.trainer.step import TrainStep
from simulated import sites

Waits = Counter[tuple[str, str, str]]
"""How often, by thread, line and kind: `DEVICE`, of these `DRY` and `NEWER`, and `THREAD`."""

DEVICE, DRY, NEWER, THREAD = "device", "dry", "newer", "thread"
"""A wait for a device; one after which it had nothing left to do; one for work of the step that is being
queued; one for another thread (an event, a queue), which on its part may wait for the device.
"""


class Seen(NamedTuple):
    """A run, and what both processes saw of their devices."""

    summary: dict[str, Any]
    trainer: dict[str, Any]
    selector: dict[str, Any]
    per_step: list[Waits]
    """The trainer's waits when each step began to be queued, so far."""
    per_lease: list[Waits]
    """The selector's waits when each lease was taken, so far."""
    device_s: list[tuple[float, float]]
    """How long the trainer's device was busy when each step began, and on its clock, so far."""
    answering_s: tuple[float, float]
    """How long the selector says that it loaded, scored and applied weights for its answers, and how long its
    device was busy with that.
    """

    @property
    def races(self) -> list[Any]:
        """Those of both."""
        return [*self.trainer["races"], *self.selector["races"]]


def waits_so_far() -> Waits:
    """What was waited for in this process."""
    found: Waits = Counter()
    for wait in simulated.waits():
        found[wait.thread, wait.where, DEVICE] += wait.count
        found[wait.thread, wait.where, DRY] += wait.drains
        found[wait.thread, wait.where, NEWER] += wait.newer
    return found


class Steps(list[Waits]):
    """The waits of this process when each train step began to be queued, so far."""

    def __init__(self) -> None:
        super().__init__()
        self.for_threads: Waits = Counter()

    def begin(self) -> None:
        """A step begins: what is queued from here on is newer, until the next one does."""
        self.append(waits_so_far() + self.for_threads)
        simulated.mark()


@contextmanager
def waits_of_steps() -> Iterator[Steps]:
    """What this process waits for meanwhile, step by step; a loop that is not ours says when one begins."""
    train, wait, steps = TrainStep.__call__, threading.Condition.wait, Steps()

    def begun(self: TrainStep, *args: Any, **kwargs: Any) -> torch.Tensor:
        steps.begin()
        return train(self, *args, **kwargs)

    def counted(self: threading.Condition, timeout: float | None = None) -> bool:
        if timeout is None or timeout > 0.0:
            site = sites.here()
            steps.for_threads[site.thread, site.where, THREAD] += 1
        return wait(self, timeout)

    TrainStep.__call__ = begun  # type: ignore[method-assign]
    threading.Condition.wait = counted  # type: ignore[method-assign]
    try:
        yield steps
    finally:
        TrainStep.__call__ = train  # type: ignore[method-assign]
        threading.Condition.wait = wait  # type: ignore[method-assign]


def _traced() -> None:
    simulated.trace(True)


def train(config: Config, path: Path, behave: Callable[[], None] = _traced) -> Seen:
    """A run whose trainer is this process and whose selector another one, behind real sockets.

    `behave` sets how the devices of the selector's process do.
    """
    told = path.with_suffix(".selector.json")
    given = selector_settings(config) | {"link.connect": str(path)}
    selector = runs._PROCESSES.Process(target=_select, args=(given, told, behave), daemon=True)
    device_s: list[tuple[float, float]] = []
    index = torch.device(config.train.device).index or 0

    def doing(what: str) -> None:
        if what == "training":
            device_s.append((simulated.busy_s(index), simulated.elapsed_s(index)))

    simulated.reset()
    selector.start()
    try:
        with waits_of_steps() as per_step:
            summary = roles.run_trainer(
                config,
                path,
                resume=False,
                overwrite=False,
                on_open=lambda run_dir: None,
                doing=doing,
            )
    finally:
        selector.join(runs.HANG_S if not told.exists() else 10.0)
        selector.kill()
    seen = json.loads(told.read_text())
    per_lease = [Counter({tuple(key): count for key, count in waits}) for waits in seen.pop("per_lease")]
    answering_s = tuple(seen.pop("answering_s"))
    return Seen(summary, simulated.report(), seen, per_step, per_lease, device_s, answering_s)


@contextmanager
def waits_of_leases() -> Iterator[list[int]]:
    """How often the selector of this process waits for its device, lease by lease, meanwhile."""
    answer, found = Selector.answer, list[int]()

    def own_waits() -> int:
        here = threading.current_thread().name
        return sum(wait.count for wait in simulated.waits() if wait.thread == here)

    def counted(self: Selector, lease: Lease) -> Selection:
        before = own_waits()
        selection = answer(self, lease)
        found.append(own_waits() - before)
        return selection

    Selector.answer = counted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Selector.answer = answer  # type: ignore[method-assign]


def _select(given: dict[str, Any], told: Path, behave: Callable[[], None]) -> None:
    torch.set_num_threads(1)
    behave()
    per_lease: list[Any] = []
    answering_s = [0.0, 0.0]
    config = resolve(given)
    index = torch.device(config.selector.device).index or 0
    Selector.answer = _counted(Selector.answer, index, per_lease, answering_s)  # type: ignore[method-assign]
    roles.run_selector(config, given)
    torch.accelerator.synchronize(0)  # what is still in flight is looked at too
    torch.accelerator.synchronize(1)
    seen = {"per_lease": per_lease, "answering_s": answering_s}
    told.write_text(json.dumps({**simulated.report(), **seen}))


def _counted(
    answer: Callable[[Selector, Lease], Selection],
    index: int,
    per_lease: list[Any],
    answering_s: list[float],
) -> Callable[[Selector, Lease], Selection]:
    def counted(self: Selector, lease: Lease) -> Selection:
        per_lease.append(list(waits_so_far().items()))
        before = simulated.busy_s(index)
        selection = answer(self, lease)
        stats = selection.stats
        answering_s[0] = stats.view_s + stats.score_s + stats.apply_s
        answering_s[1] += simulated.busy_s(index) - before
        return selection

    return counted
