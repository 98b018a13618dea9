"""Worker processes that load the examples of any ids on demand.

A request is split into one part for each worker; a worker reads its part from its pipe, loads it and writes
it back. It is not a torch DataLoader, which must know its batches beforehand, raises a worker's death from a
signal handler anywhere in the main thread, and passes tensors through shared memory, of which a container has
64 MB. Here a death or a silence is noticed while waiting for the answer. This file must not know what the
examples are, nor what a request asks for.
"""

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, TypeAlias

import torch

from sbpipe.data.trees import packed, unpacked
from sbpipe.errors import DataError

Wanted: TypeAlias = list[tuple[int, int]]
"""The (example_id, epoch) pairs of a request."""
Load: TypeAlias = Callable[[Any], Any]
"""A worker's function from a request to any tree."""

# Forked, because a user's data set may not be picklable.
_PROCESSES = multiprocessing.get_context("fork")

_TIMEOUT_S = 120.0
_STOP_S = 2.0


class Workers:
    """Processes that load examples, started by the first request; with 0 workers this process loads."""

    def __init__(self, load: Load, num_workers: int, *, name: str) -> None:
        """`name` is the data's name in errors."""
        self._load, self._name = load, name
        self._num_workers = num_workers
        self._workers: list[_Worker] = []

    def start(self) -> None:
        """Start the processes now, before there are threads, whose locks a fork would copy."""
        if not self._workers:
            self._workers = [_Worker(self._load, self._name) for _ in range(self._num_workers)]

    def load(self, wanted: Wanted) -> list[Any]:
        """The wanted examples, in this order, in one or more pieces."""
        if not self._num_workers:
            return [self._load(wanted)]
        # Neighbours stay together, so that the answers are in the requested order.
        size = max(-(-len(wanted) // self._num_workers), 1)
        return self.ask([wanted[start : start + size] for start in range(0, len(wanted), size)])

    def ask(self, requests: Sequence[Any]) -> list[Any]:
        """The answers to requests, at most one for each worker."""
        self.start()
        asked = self._workers[: len(requests)]
        try:
            for worker, request in zip(asked, requests, strict=True):
                worker.ask(request)
            deadline_s = time.monotonic() + _TIMEOUT_S
            return [worker.answer(deadline_s) for worker in asked]
        except BaseException:
            # Answers to other parts are still coming, and would be taken for answers to the next request.
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

    def __init__(self, load: Load, name: str) -> None:
        self._name = name
        self._pipe, theirs = _PROCESSES.Pipe()
        self._process = _PROCESSES.Process(
            target=_serve, args=(theirs, self._pipe, load), daemon=True, name=f"sbpipe-load-{name}"
        )
        self._process.start()
        # Only the worker keeps its end open, so that its death closes the pipe.
        theirs.close()

    def ask(self, request: Any) -> None:
        try:
            self._pipe.send(request)
        except OSError:
            raise self._lost() from None

    def answer(self, deadline_s: float) -> Any:
        # Both may be ready: an answer sent before the worker's death still counts.
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
            skeleton, forms = answer
            return unpacked(skeleton, [self._tensor(shape, dtype) for shape, dtype in forms])
        except (EOFError, OSError):
            raise self._lost() from None

    def hang_up(self) -> None:
        # Closing alone is not enough: workers that were started later hold a copy of this end.
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
        if values.numel():
            self._pipe.recv_bytes_into(_bytes_of(values))
        return values

    def _lost(self) -> DataError:
        self._process.join(_STOP_S)
        return DataError(
            f"{self._name} examples: a loader process died (exit code {self._process.exitcode}; -9 often "
            "means too little memory). "
            "Set fewer data.workers, or data.workers=0 to load in the main process"
        )


def _serve(pipe: Connection, parents_end: Connection, load: Load) -> None:
    """The worker: answer requests until the parent hangs up or dies."""
    # Ctrl-C reaches the whole group, but the parent decides; its inherited handlers must not run here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # More threads in each process would take cores from training.
    torch.set_num_threads(1)
    # A forked worker would otherwise keep its own pipe open, and never see that the parent has died.
    parents_end.close()
    with suppress(EOFError, OSError):
        while request := pipe.recv():
            _reply(pipe, load, request)


def _reply(pipe: Connection, load: Load, request: Any) -> None:
    try:
        skeleton, tensors = packed(load(request))
    except DataError as error:
        pipe.send(error)
        return
    # Shapes first, then raw bytes: a tensor sent as an object would go through shared memory.
    pipe.send((skeleton, [(tuple(values.shape), values.dtype) for values in tensors]))
    for values in tensors:
        if values.numel():
            pipe.send_bytes(_bytes_of(values))


def _bytes_of(values: torch.Tensor) -> memoryview:
    return values.contiguous().reshape(-1).view(torch.uint8).numpy().data
