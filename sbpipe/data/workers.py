"""Worker processes that load the examples of any ids on demand.

A request is split into one part for each worker; a worker reads its part from its pipe, loads it and writes
it back. Not a torch DataLoader: that one wants to know its batches beforehand, raises a worker's death out of
a signal handler wherever the main thread happens to be, and passes tensors through shared memory, of which a
container has 64 MB. Here a death or a silence is noticed where the answer is awaited. This file must not know
what the examples are.
"""

import multiprocessing
import signal
import time
from contextlib import suppress
from multiprocessing.connection import Connection, wait

import torch

from sbpipe.data.keyed import Items, KeyedDataset
from sbpipe.errors import DataError

# The (example_id, epoch) pairs of a request.
Wanted = list[tuple[int, int]]

_TIMEOUT_S = 120.0
_STOP_S = 2.0


class Workers:
    """Processes that load examples, started by the first request; with 0 of them this process does it."""

    def __init__(self, dataset: KeyedDataset, num_workers: int) -> None:
        self._dataset = dataset
        self._num_workers = num_workers
        self._workers: list[_Worker] = []

    def load(self, wanted: Wanted) -> list[Items]:
        """The examples wanted, in that order, in one or more pieces."""
        if not self._num_workers:
            return [self._dataset.items(wanted)]
        if not self._workers:
            self._workers = [_Worker(self._dataset) for _ in range(self._num_workers)]
        # Neighbours stay together, so that the answers one after the other are in the order asked for.
        size = max(-(-len(wanted) // self._num_workers), 1)
        parts = [wanted[start : start + size] for start in range(0, len(wanted), size)]
        asked = self._workers[: len(parts)]
        try:
            for worker, part in zip(asked, parts, strict=True):
                worker.ask(part)
            deadline_s = time.monotonic() + _TIMEOUT_S
            return [worker.answer(deadline_s) for worker in asked]
        except BaseException:
            # Other parts are still under way, and would be taken for answers to the next request.
            self.stop()
            raise

    def stop(self) -> None:
        """End the processes; a further request starts new ones."""
        for worker in self._workers:
            worker.hang_up()
        for worker in self._workers:
            worker.stop()
        self._workers = []


class _Worker:
    """The parent's end of one worker process."""

    def __init__(self, dataset: KeyedDataset) -> None:
        self._name = dataset.name
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.Process(
            target=_serve, args=(theirs, self._pipe, dataset), daemon=True, name=f"sbpipe-load-{dataset.name}"
        )
        self._process.start()
        # The worker's end is open in the worker alone, so that its death closes the pipe.
        theirs.close()

    def ask(self, part: Wanted) -> None:
        try:
            self._pipe.send(part)
        except OSError:
            raise self._lost() from None

    def answer(self, deadline_s: float) -> Items:
        # Both may be ready: what a worker sent before it died still counts.
        ready = wait([self._pipe, self._process.sentinel], timeout=max(deadline_s - time.monotonic(), 0))
        if ready and self._pipe not in ready:
            raise self._lost()
        if not ready:
            raise DataError(
                f"{self._name} examples: a loader process gave no answer for {_TIMEOUT_S:.0f} s. "
                "Set data.workers=0 to see where the data set hangs, or train.batch_size lower if it is only "
                "slow"
            )
        try:
            answer = self._pipe.recv()
            if isinstance(answer, DataError):
                raise answer
            return Items(*(self._tensor(shape, dtype) for shape, dtype in answer))
        except (EOFError, OSError):
            raise self._lost() from None

    def hang_up(self) -> None:
        # Closing alone is not seen while workers started later hold a copy of this end.
        with suppress(OSError):
            self._pipe.send([])
        self._pipe.close()

    def stop(self) -> None:
        self._process.join(_STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def _tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        values = torch.empty(shape, dtype=dtype)
        self._pipe.recv_bytes_into(_bytes_of(values))
        return values

    def _lost(self) -> DataError:
        self._process.join(_STOP_S)
        return DataError(
            f"{self._name} examples: a loader process died (exit code {self._process.exitcode}; -9 often "
            "means too little memory). "
            "Set fewer data.workers, or data.workers=0 to load in the main process"
        )


def _serve(pipe: Connection, parents_end: Connection, dataset: KeyedDataset) -> None:
    """The worker: answer requests until the parent hangs up or dies."""
    # Ctrl-C reaches the whole group, but the parent decides; and its handlers, inherited, must not run here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # There are as many processes as were asked for; threads in each would take the cores of training.
    torch.set_num_threads(1)
    # A forked worker would otherwise keep its own pipe open, and never see that the parent has died.
    parents_end.close()
    with suppress(EOFError, OSError):
        while wanted := pipe.recv():
            _reply(pipe, dataset, wanted)


def _reply(pipe: Connection, dataset: KeyedDataset, wanted: Wanted) -> None:
    try:
        items = dataset.items(wanted)
    except DataError as error:
        pipe.send(error)
        return
    # Bytes after their shapes: a tensor that is sent whole would go through shared memory.
    pipe.send([(tuple(values.shape), values.dtype) for values in items])
    for values in items:
        pipe.send_bytes(_bytes_of(values))


def _bytes_of(values: torch.Tensor) -> memoryview:
    return values.contiguous().reshape(-1).view(torch.uint8).numpy().data
