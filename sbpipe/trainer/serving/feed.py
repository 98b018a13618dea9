"""The queue between selection and training: the next batch is loaded while one trains. Knows no model."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from sbpipe.machine import devices
from sbpipe.records import Ids, TrainBatch
from sbpipe.runs.spans import Spans
from sbpipe.trainer.serving.dispatch import Dispatcher

_POLL_S = 0.2
_LOOK_S = 0.05
"""How often a loop that waits for a batch does other work that is due."""


class Prepared(NamedTuple):
    """A train batch and its examples on the trainer's device: pixels, or a batch of a user's own data set."""

    batch: TrainBatch
    inputs: Any
    targets: torch.Tensor
    whole_at: float = 0.0
    """When the batch was whole and its loading began, on the performance counter."""
    view_s: float = 0.0
    """How long its loading took."""


class Examples(Protocol):
    """A source of examples."""

    def batch(self, example_ids: Ids, epochs: int | Ids) -> tuple[Any, torch.Tensor]:
        """The examples of these ids, in that order, as they look in their epochs."""
        ...


class Feed:
    """A thread that turns train batches into inputs, one ahead of the loop."""

    def __init__(
        self, dispatcher: Dispatcher, examples: Examples, spans: Spans, device: torch.device
    ) -> None:
        """Examples are put on the trainer's device."""
        self._dispatcher, self._device = dispatcher, device
        self._examples = examples
        self._spans = spans
        # One batch ahead of the loop: a second one would be a step staler when it is trained.
        self._queue: queue.Queue[Prepared | BaseException | None] = queue.Queue(maxsize=1)
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        """Begin to prepare batches."""
        self._thread.start()

    @property
    def is_empty(self) -> bool:
        """Whether `next` would wait."""
        return self._queue.empty()

    def next(
        self, is_stopped: threading.Event, meanwhile: Callable[[], None] = lambda: None
    ) -> Prepared | None:
        """The next prepared batch; None when there are no more or the run was stopped.

        `meanwhile` is called from time to time while it is missing.
        """
        asked_at, is_waiting = time.perf_counter(), self.is_empty
        if is_waiting:
            self._dispatcher.loop_waits()
        while not is_stopped.is_set():
            try:
                item = self._queue.get(timeout=_LOOK_S)
            except queue.Empty:
                meanwhile()
                continue
            if isinstance(item, BaseException):
                raise item
            if item is not None:
                if is_waiting:
                    # Only this part of the wait was for loading; the time before `whole_at` was for
                    # selection.
                    begin, now = max(asked_at, item.whole_at), time.perf_counter()
                    self._spans.add("wait_view", begin, now - begin)
                self._dispatcher.batch_started(asked_at, item.view_s)
            return item
        return None

    def stop(self) -> None:
        """End the thread; a batch that it holds is not trained and stays in the stream."""
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def _run(self) -> None:
        try:
            devices.make_current(self._device)
            while (batch := self._dispatcher.next_batch()) is not None:
                begin = time.perf_counter()
                with self._spans.span("view"):
                    inputs, targets = self._examples.batch(batch.example_ids, batch.epochs)
                self._put(Prepared(batch, inputs, targets, begin, time.perf_counter() - begin))
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - the top of a thread: the loop raises it again
            self._put(error)

    def _put(self, item: Prepared | BaseException | None) -> None:
        while not self._is_stopping.is_set():
            try:
                self._queue.put(item, timeout=_POLL_S)
                return
            except queue.Full:
                continue
