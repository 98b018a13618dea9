"""Finds the checkpoints in a run directory by their names. It must not know what is in them."""

import re
from pathlib import Path

from sbpipe.runs.names.files import CHECKPOINT, CHECKPOINTS, SHARES

_NAME = re.compile(re.escape(CHECKPOINT).replace(r"\{\}", r"(\d+)"))

_SHARES = re.compile(re.escape(SHARES).replace(r"\{\}", r"(\d+)", 1).replace(r"\{\}", r"[0-9a-f]+"))


def steps_in(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, oldest first; it does not check that they can be read."""
    found = [_NAME.fullmatch(path.name) for path in folder.glob(CHECKPOINT.format("*"))]
    return sorted(int(match[1]) for match in found if match)


def shares_in(folder: Path) -> dict[str, int]:
    """The folders in which ranks left their shares of a checkpoint: name to step."""
    found = [_SHARES.fullmatch(path.name) for path in folder.glob(SHARES.format("*", "*"))]
    return {match[0]: int(match[1]) for match in found if match}


def path_of(folder: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / CHECKPOINT.format(step)


def has_checkpoint(run: Path) -> bool:
    """Whether a run has a checkpoint to resume from; without one it starts from step 0."""
    return bool(steps_in(run / CHECKPOINTS))
