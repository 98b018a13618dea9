"""Notices at once that another rank has ended, whatever this rank waits for. It must not know what ranks do.

A collective that waits for a rank that is gone fails by itself on gloo, whose sockets close with the process.
On devices' own backends it does not: NCCL does not see the death of a peer, and the host blocks until a
deadline. So rank 0 and every other rank share one more gloo connection, and a thread of each listens to it.

Each side sends a word every third of the deadline. So a rank may work for any time (a long evaluation, a loop
that waits for selectors), but is missed when its process or host hangs. If a process lives but its loop
hangs, `overdue` says so, and all ranks end.
"""

import atexit
import contextlib
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from sbpipe.errors import RankLost

log = logging.getLogger("sbpipe")

_BYE, _HERE, _LOST, _STANDS = range(4)
_REASONS = {_LOST: "it has lost another rank", _STANDS: "it stands still"}
_GRACE_S = 5.0
"""Time for a loop that noticed it too, to close its files."""


def _leave_now() -> None:
    # Not by an exception: the loop's thread may be in a call that never returns.
    os._exit(RankLost.exit_code)


class Watch:
    """One rank's watch: rank 0 watches all others, the others watch rank 0."""

    def __init__(
        self,
        wait_s: float,
        on_loss: Callable[[], None] = _leave_now,
        *,
        overdue: Callable[[], str] = lambda: "",
    ) -> None:
        """All ranks create theirs together. `on_loss` is called a moment after a rank was lost.

        `overdue` returns what this process has been doing for longer than the others can wait; "" = nothing.
        """
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=wait_s))
        assert isinstance(group, dist.ProcessGroup)
        # A reference is kept: it is used until the process ends, also after `destroy_process_group`.
        self._group = group
        self._rank, self._wait_s, self._on_loss = dist.get_rank(), wait_s, on_loss
        self._overdue = overdue
        others = range(1, dist.get_world_size()) if self._rank == 0 else range(1)
        self._others = set(others)
        self._is_over = threading.Event()
        self._is_standing = False
        self._is_leave_said = False
        self._turn = threading.Lock()
        self._threads = [
            threading.Thread(target=self._listen, args=(other,), name="watch", daemon=True)
            for other in others
        ]
        self._threads.append(threading.Thread(target=self._beat, name="watch", daemon=True))
        for thread in self._threads:
            thread.start()
        atexit.register(self._part)

    def leave(self, *, is_fine: bool = True) -> None:
        """Stop watching. `is_fine`: the others are told, and stop watching this rank too."""
        if self._is_over.is_set():
            return
        self._is_over.set()
        if is_fine:
            self._say(_BYE)
            self._is_leave_said = True

    def _part(self) -> None:
        """At the end of the program: wait until the other ranks end too.

        A thread that comes back from gloo while the interpreter shuts down aborts the process ("terminate
        called without an active exception"), and torchrun would start a run again that is done.
        """
        if self._is_leave_said:
            give_up = time.monotonic() + self._wait_s
            for thread in self._threads:
                thread.join(max(0.0, give_up - time.monotonic()))

    def _beat(self) -> None:
        while not self._is_over.wait(self._wait_s / 3):
            if what := self._overdue():
                self._stand(what)
                return
            self._say(_HERE)

    def _say(self, word: int) -> None:
        with self._turn:
            for other in sorted(self._others):
                # A rank that is gone is noticed by its listening thread.
                with contextlib.suppress(RuntimeError):
                    self._group.send([torch.tensor([word])], other, 0).wait()

    def _listen(self, other: int) -> None:
        word = torch.tensor([_HERE])
        try:
            while int(word) == _HERE:
                self._group.recv([word], other, 0).wait()
        except RuntimeError as error:
            self._others.discard(other)
            self._lost(other, str(error).splitlines()[0][:160])
        self._others.discard(other)
        if int(word) in _REASONS:
            self._lost(other, _REASONS[int(word)])

    def _lost(self, other: int, reason: str) -> None:
        if self._is_over.is_set() or self._is_standing:
            return
        log.error(
            "rank %d: rank %d has ended, or was silent for train.ranks_wait_s = %g (%s); this rank ends too. "
            "Look into the other ranks' output; torchrun --max-restarts N starts all of them again",
            self._rank,
            other,
            self._wait_s,
            reason,
        )
        if self._rank == 0:
            self._say(_LOST)
        self._end()

    def _stand(self, what: str) -> None:
        """End all ranks: this process lives, but hangs in what the others wait for."""
        self._is_standing = True
        log.error(
            "rank %d has been %s (train.ranks_wait_s = %g), so all ranks end. Where it stands is told below; "
            "torchrun --max-restarts N starts all of them again",
            self._rank,
            what,
            self._wait_s,
        )
        if sys.__stderr__ is not None:
            faulthandler.dump_traceback(sys.__stderr__)
        self._say(_STANDS)
        self._end()

    def _end(self) -> None:
        if not self._is_over.wait(_GRACE_S):
            self._on_loss()
