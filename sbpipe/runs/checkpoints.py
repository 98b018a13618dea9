"""Which checkpoints lie in a run directory, by their names. It must not know what is in them."""

import re
from pathlib import Path

from sbpipe.runs.names.files import CHECKPOINT, CHECKPOINTS, SHARES

_NAME = re.compile(re.escape(CHECKPOINT).replace(r"\{\}", r"(\d+)"))

_SHARES = re.compile(re.escape(SHARES).replace(r"\{\}", r"(\d+)", 1).replace(r"\{\}", r"[0-9a-f]+"))


def steps_in(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, oldest first; whether they can be read is not looked at."""
    found = [_NAME.fullmatch(path.name) for path in folder.glob(CHECKPOINT.format("*"))]
    return sorted(int(match[1]) for match in found if match)


def shares_in(folder: Path) -> dict[str, int]:
    """The names of the folders in which ranks left their shares of a checkpoint, and of which step."""
    found = [_SHARES.fullmatch(path.name) for path in folder.glob(SHARES.format("*", "*"))]
    return {match[0]: int(match[1]) for match in found if match}


def path_of(folder: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return folder / CHECKPOINT.format(step)


def has_checkpoint(run: Path) -> bool:
    """Whether a run has one to go on from; a run that was stopped before its first begins anew."""
    return bool(steps_in(run / CHECKPOINTS))
