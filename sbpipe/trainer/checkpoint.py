"""Checkpoints: written beside the loop, whole or not at all. Knows nothing of what is in them."""

import logging
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sbpipe.errors import RunDirError
from sbpipe.files import atomic_file

log = logging.getLogger("sbpipe.trainer")

FORMAT = 4
_NAME = re.compile(r"step-(\d+)\.pt")


class Checkpoints:
    """The checkpoint folder of one run."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        self._thread: threading.Thread | None = None
        self.num_failed = 0

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write a checkpoint on a thread; `state` must not change meanwhile. A failure is only logged."""
        self.wait()
        self._thread = threading.Thread(
            target=self._write, args=(step, _to_tensors(state)), name="checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Until the last checkpoint is on disk."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, step: int, state: dict[str, Any]) -> None:
        try:
            self._folder.mkdir(exist_ok=True)
            with atomic_file(self._folder / f"step-{step}.pt", is_durable=True) as file:
                torch.save({"format": FORMAT, "step": step, **state}, file)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            self.num_failed += 1
            log.warning(
                "checkpoint at step %d not written (%s); the last good one is kept and training goes on",
                step,
                error,
            )
            return
        leftovers = self._folder.glob(".step-*")  # one writer, so these are what a killed process left
        outdated = [self._folder / f"step-{old}.pt" for old in self._steps()[: -self._keep]]
        for path in (*leftovers, *outdated):
            path.unlink(missing_ok=True)

    def _steps(self) -> list[int]:
        found = [_NAME.fullmatch(path.name) for path in self._folder.glob("step-*.pt")]
        return sorted(int(match.group(1)) for match in found if match)

    def load_newest(self) -> dict[str, Any] | None:
        """The newest checkpoint that can be read, None if there is none."""
        # A kill in the middle of a write leaves the one before whole, so an unreadable one is passed over.
        for step in reversed(self._steps()):
            path = self._folder / f"step-{step}.pt"
            try:
                state = torch.load(path, weights_only=True, map_location="cpu")
            except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
                log.warning("%s cannot be read (%s); trying an older one", path, error)
                continue
            if state.get("format") != FORMAT:
                raise RunDirError(
                    f"{path} has format {state.get('format')}, this version reads {FORMAT}. Resume it with "
                    "the version that wrote it"
                )
            return dict(_to_arrays(state))
        return None


# NumPy arrays travel as tensors under a marker, so that reading needs nothing but torch's safe loader.
_MARK = "__array__"


def _to_tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {_MARK: torch.from_numpy(value.copy())}
    return {name: _to_tensors(inner) for name, inner in value.items()} if isinstance(value, dict) else value


def _to_arrays(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return (
        value[_MARK].numpy()
        if set(value) == {_MARK}
        else {name: _to_arrays(inner) for name, inner in value.items()}
    )
