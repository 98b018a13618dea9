"""The checkpoints of a run: written beside the loop, retried after a failure; finds the newest good one.

It must not know what is in them, nor how one is written and checked: `checkpoint_file.py` does.
"""

import contextlib
import logging
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sbpipe.errors import RunDirError
from sbpipe.files import make_folder
from sbpipe.runs.checkpoints import path_of, shares_in, steps_in
from sbpipe.trainer import checkpoint_file

log = logging.getLogger("sbpipe.trainer")

_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 60.0


Beside = Callable[[Path, int, Callable[[], None]], dict[str, Any]]
"""Writes the files beside the checkpoint of a step into a folder, reports progress, returns their index.

Called exactly once for each checkpoint, also where the folder cannot be made: other ranks wait for it.
"""


class Checkpoints:
    """The checkpoint folder of one run."""

    def __init__(
        self,
        folder: Path,
        keep: int = 2,
        *,
        on_piece: Callable[[], None] = lambda: None,
        warn: Callable[[str], None] = log.warning,
    ) -> None:
        """`on_piece` is called while one is written, `warn` is told what went wrong."""
        self.folder = folder
        self._keep = keep
        self._on_piece, self._warn = on_piece, warn
        # The thread is started now. If it were started when memory has run out, it might never begin, and
        # Python, which waits for its first sign of life, would hang the loop.
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] = self._writer.submit(lambda: None)
        self._retry_s, self._retry_at = _FIRST_RETRY_S, float("inf")
        self.num_failed = 0
        self.last_error = ""
        """Why the last one was not written; "" if it was."""

    def save(self, step: int, state: dict[str, Any], beside: Beside | None = None) -> None:
        """Write a checkpoint on a thread; a failure is only reported, and makes another one due soon."""
        self.wait()
        self._retry_at = float("inf")
        self._writing = self._writer.submit(self._write_or_warn, step, checkpoint_file.frozen(state), beside)

    @property
    def is_due_again(self) -> bool:
        """Whether the last one was not written, and it is time to try again."""
        return time.monotonic() >= self._retry_at

    def save_now(self, step: int, state: dict[str, Any], beside: Beside | None = None) -> str:
        """Write a checkpoint and wait for it; returns why that failed, or ""."""
        self.wait()
        self._write(step, checkpoint_file.frozen(state), beside)
        return self.last_error

    def wait(self) -> None:
        """Until the last checkpoint is on disk."""
        self._writing.result()

    def _write_or_warn(self, step: int, state: dict[str, Any], beside: Beside | None) -> None:
        had_failed = bool(self.last_error)
        self._write(step, state, beside)
        if self.last_error:
            self._retry_at = time.monotonic() + self._retry_s
            kept = self._steps_there()
            self._warn(
                f"checkpoint at step {step} not written ({self.last_error}); training goes on, it is tried "
                f"again in {self._retry_s:.0f} s, and "
                + (f"the one of step {kept[-1]} is kept" if kept else "there is no other one")
            )
            self._retry_s = min(2.0 * self._retry_s, _LONGEST_RETRY_S)
        elif had_failed:
            self._warn(f"the checkpoint at step {step} was written: checkpoints work again")

    def _write(self, step: int, state: dict[str, Any], beside: Beside | None) -> None:
        shares = ""
        try:
            if beside is not None:
                # First: the checkpoint itself certifies that these files are complete.
                state = {**state, checkpoint_file.SHARES: beside(self.folder, step, self._on_piece)}
                shares = state[checkpoint_file.SHARES]["folder"]
            make_folder(self.folder)
            checkpoint_file.write(path_of(self.folder, step), step, state, self._on_piece)
        except (OSError, MemoryError) as error:
            self.num_failed += 1
            self.last_error = getattr(error, "strerror", "") or str(error) or "out of memory"
            if shares:
                shutil.rmtree(self.folder / shares, ignore_errors=True)
            return
        self.last_error, self._retry_s = "", _FIRST_RETRY_S
        self._tidy(step, shares)

    def _tidy(self, step: int, shares: str = "") -> None:
        """Remove checkpoints that are too old, or of a later step: the run was resumed from before it.

        Also removes shares that belong to no checkpoint; `shares` are those of the one just written.
        """
        steps = self._steps_there()
        kept = [old for old in steps if old <= step][-self._keep :]
        outdated = [path_of(self.folder, old) for old in steps if old not in kept]
        with contextlib.suppress(OSError):  # they only take space; the next write tries again
            leftovers = list(self.folder.glob(".step-*"))  # there is one writer: a killed process left these
            for path in (*leftovers, *outdated):
                path.unlink(missing_ok=True)
            for name, old in shares_in(self.folder).items():
                if old not in kept or (old == step and name != shares):
                    shutil.rmtree(self.folder / name)

    def _steps_there(self) -> list[int]:
        """The steps found; [] if the folder cannot be listed, as by a process out of file descriptors."""
        with contextlib.suppress(OSError):
            return steps_in(self.folder)
        return []

    def load_newest(self, *, is_whole: bool = True) -> dict[str, Any] | None:
        """The newest checkpoint whose every byte is as it was written, None if there is none at all.

        Without `is_whole`, it may have marks in place of sharded tensors.
        """
        damage = []
        for step in reversed(steps_in(self.folder)):
            path = path_of(self.folder, step)
            try:
                state = checkpoint_file.read(path, is_whole=is_whole)
            except checkpoint_file.Damaged as error:
                damage.append(f"{path}: {error}")
                continue
            for one in damage:
                self._warn(f"{one}; going on from the one before it, of step {step}")
            return state
        if damage:
            raise RunDirError(
                f"no checkpoint in {self.folder} can be used:\n  "
                + "\n  ".join(damage)
                + "\nPut back a copy, resume with the version that wrote it, or begin anew with --overwrite"
            )
        return None
