"""What a replica other than the first does: load the share and take the step it is told, until the end."""

import queue
import signal
import threading
from pathlib import Path

from sbpipe.data import Batch
from sbpipe.machine import devices
from sbpipe.trainer.checkpoint import Checkpoints
from sbpipe.trainer.parallel.group import Group
from sbpipe.trainer.parallel.step import ParallelStep
from sbpipe.trainer.setup import Setup


def work(setup: Setup, group: Group, checkpoints: Path | None) -> None:
    """Follow the first replica; `checkpoints` is the folder of a run that is resumed.

    A signal to stop is the first replica's affair: it ends its step, and all others with it.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    step = setup.train_step
    if checkpoints is not None and (state := Checkpoints(checkpoints).load_newest()) is not None:
        step.restore(state)
    parallel = ParallelStep(setup.config, step.model, setup.loss, step.optimizer, setup.spans, group)
    ahead: queue.Queue[Batch | BaseException] = queue.Queue(maxsize=1)
    threading.Thread(target=_load, args=(setup, group, ahead), name="feed", daemon=True).start()
    while True:
        step_number, progress = group.hear()
        if step_number < 0:
            return
        batch = ahead.get()
        if isinstance(batch, BaseException):
            raise batch
        parallel(step_number, progress, *batch)


def _load(setup: Setup, group: Group, ahead: "queue.Queue[Batch | BaseException]") -> None:
    try:
        devices.make_current(setup.device)
        while True:
            example_ids, epochs = group.next_order()
            ahead.put(setup.data.train.batch(group.own(example_ids), group.own(epochs)))
    except BaseException as error:  # noqa: BLE001 - the top of a thread: the loop raises it again
        ahead.put(error)
