"""From a run or one of its checkpoints to a folder that others can use. Knows no data set and no device."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save

from sbpipe.errors import RunDirError
from sbpipe.export import load, onnx_file
from sbpipe.files import atomic_file, write_atomically
from sbpipe.runs.directory import refuse_foreign_links
from sbpipe.runs.names.files import CHECKPOINTS, EXPORT, WEIGHTS
from sbpipe.trainer import checkpoint_file
from sbpipe.trainer.checkpoint import Checkpoints
from sbpipe.trainer.first_weights import trained_weights
from sbpipe.version import __version__

CARD, PROGRAM, ONNX = "card.json", "load.py", "model.onnx"


@dataclass(frozen=True)
class Exported:
    """Where an export lies, and of which step it is."""

    folder: Path
    step: int


def export(source: Path, out: Path | None = None, *, with_onnx: bool = False) -> Exported:
    """Write the weights, the card and the program of a run directory's newest checkpoint, or of a file."""
    if with_onnx:
        onnx_file.check_installed()
    state = read_state(source)
    # Text, numbers, lists and tables only: as they stand in the checkpoint.
    card = {"sbpipe": __version__, "step": state["step"], "digest": state["digest"], **state["card"]}
    folder = out or (source if source.is_dir() else source.parent) / EXPORT
    refuse_foreign_links(folder)
    try:
        _write(folder, trained_weights(state), card)
        if with_onnx:
            onnx_file.write(folder / ONNX, *load.load(folder))
    except OSError as error:
        raise RunDirError(
            f"{folder} cannot be written ({error.strerror or error}). Choose another place with --out"
        ) from None
    return Exported(folder, state["step"])


def read_state(source: Path) -> dict[str, Any]:
    """The checked checkpoint of a run directory or a file; one without a card is refused."""
    state = _newest_in(source) if source.is_dir() else _read(source)
    if "card" not in state:
        raise RunDirError(
            f"the checkpoint of step {state['step']} in {source} does not say what its model is: an older "
            "version wrote it. Go on training from it with this version, which writes another"
        )
    return state


def _newest_in(run: Path) -> dict[str, Any]:
    state = Checkpoints(run / CHECKPOINTS).load_newest()
    if state is None:
        raise RunDirError(
            f"{run} holds no checkpoint. Name a run directory that has trained, or a checkpoint in it"
        )
    return state


def _read(path: Path) -> dict[str, Any]:
    try:
        return checkpoint_file.read(path)
    except checkpoint_file.Damaged as error:
        raise RunDirError(f"{path} is no checkpoint that can be used: {error}. Name another") from None


def _write(folder: Path, weights: dict[str, Any], card: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(folder / WEIGHTS) as file:
        file.write(save({name: tensor.contiguous() for name, tensor in weights.items()}, {"format": "pt"}))
    write_atomically(folder / CARD, json.dumps(card, indent=2) + "\n")
    shutil.copyfile(load.__file__, folder / PROGRAM)
