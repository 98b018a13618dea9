"""The loop of ranks other than 0: load shares and follow rank 0's words, until the end."""

import contextlib
import queue
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from sbpipe.config import Config
from sbpipe.machine.devices import make_current
from sbpipe.records import Ids, Manifest, Part
from sbpipe.trainer.ranks.group import Group
from sbpipe.trainer.ranks.saving import Following
from sbpipe.trainer.ranks.step import RankedStep, load_share
from sbpipe.trainer.ranks.word import Do, Word
from sbpipe.trainer.setup import Setup
from sbpipe.weights.gather import Shards
from sbpipe.weights.manifest import layouts_of

_POLL_S, _GRACE_S = 0.2, 5.0


class Follower:
    """One rank of a run, from its first word to the last."""

    def __init__(self, setup: Setup, group: Group) -> None:
        step = setup.train_step
        assert isinstance(step, RankedStep), "ranks share their steps"
        self._setup, self._group, self._step = setup, group, step
        self._ahead = Ahead(partial(load_share, setup.data.train, group), group)
        self._published = shares_of(setup.config, step.published, setup.manifest)
        self._following = Following()

    def run(self) -> None:
        """Follow rank 0 until the end. Signals to stop are ignored: rank 0 handles them for all ranks.

        If rank 0 is gone and a collective does not end by itself, the group's watch ends this process.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        self._ahead.start()
        while (word := self._group.hear()).do is not Do.END:
            self._do(word)
        self._group.leave()
        self._following.wait()
        self._ahead.stop()
        self._setup.data.close()

    def _do(self, word: Word) -> None:
        if word.do is Do.STEP:
            self._step.follow(word, *self._ahead.next())
            for part in word.due(word.step + 1):
                self._join(part)
        elif word.do is Do.EVALUATE:
            self._setup.evaluate()
        elif word.do is Do.GATHER:
            self._step.join_state()
        elif word.do is Do.DIGEST:
            self._step.join_digest()
        elif word.do is Do.SAVE:
            _, saving = self._step.take_share()
            if saving is not None:
                self._following.start(saving, self._step.folder)
        elif word.do is Do.RESTORE:
            self._step.take_state()
        elif word.do is Do.PUBLISH:
            self._join(word.part)

    def _join(self, part: Part) -> None:
        if part in self._published:
            with self._group.waiting_for("the shares of the weights"):
                self._published[part].copy_into(None)


def shares_of(config: Config, model: Any, manifest: Manifest) -> dict[Part, Shards]:
    """What a rank contributes to each publish; {} where every rank holds the whole model."""
    if not Shards.are_in(model):
        return {}
    parts = layouts_of(manifest)
    return {
        part: Shards(model, layout)
        for part, layout in parts.items()
        if part is Part.WHOLE or config.fast_interval
    }


class Ahead:
    """A thread that loads this rank's share of the batch that rank 0 named last."""

    def __init__(self, load: Callable[[Ids, Ids], Any], group: Group) -> None:
        """`load` gets example ids and epochs of a whole batch."""
        self._load_share, self._group = load, group
        self._ready: queue.Queue[Any] = queue.Queue(maxsize=1)
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._load, name="feed", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def next(self) -> Any:
        """The next share."""
        # No deadline here: the thread's wait for rank 0 has one, and its error is raised here.
        batch = self._ready.get()
        if isinstance(batch, BaseException):
            raise batch
        return batch

    def stop(self) -> None:
        """Drain the remaining orders of rank 0 and end the thread."""
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join(_GRACE_S)

    def _load(self) -> None:
        try:
            make_current(self._group.device)
            while (order := self._group.next_order()) is not None:
                if not self._is_stopping.is_set():
                    self._put(self._load_share(*order))
        except BaseException as error:  # noqa: BLE001 - the top of a thread: the loop raises it again
            self._put(error)

    def _put(self, item: Any) -> None:
        while not self._is_stopping.is_set():
            with contextlib.suppress(queue.Full):
                self._ready.put(item, timeout=_POLL_S)
                return
