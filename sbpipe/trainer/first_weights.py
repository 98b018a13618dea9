"""The initial weights of a run, where `train.init_from` names some. Knows no step and no run.

A file must fit the model tensor by tensor. Only the head may differ, as it does for other classes: then it
stays as it was built, and a note says so.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from sbpipe.errors import ConfigError, RunDirError
from sbpipe.models import parts_of
from sbpipe.models.torchvision_models import PRETRAINED, pretrained
from sbpipe.runs.names.files import CHECKPOINTS, WEIGHTS
from sbpipe.trainer import checkpoint_file
from sbpipe.trainer.checkpoint import Checkpoints

Tensors = Mapping[str, torch.Tensor]

KEY = "train.init_from"
_FORMS = (
    "Name a run directory, a checkpoint, a folder of `sbpipe export`, a .safetensors file, or "
    f"{PRETRAINED}DEFAULT for the weights that torchvision has for model.name"
)
_SHOWN = 5
_COUNTER = "num_batches_tracked"
"""BatchNorm's count of batches: older weights lack it, and nothing depends on it."""


class Fit(NamedTuple):
    """How the tensors of a file fit a model: those taken, and those of the model that stay fresh."""

    taken: list[str]
    fresh: list[str]
    faults: list[str]
    """Why the file cannot be used, one phrase for each tensor."""


def load_first_weights(model: nn.Module, model_name: str, source: str) -> str:
    """Put the weights of `source` into a model; returns a note of what was done."""
    given = read_weights(model_name, source)
    fit = fit_of(model.state_dict(), given, parts_of(model))
    if fit.faults:
        more = f" and {len(fit.faults) - _SHOWN} more" if len(fit.faults) > _SHOWN else ""
        reason = f"does not fit model.name = {model_name!r}: {'; '.join(fit.faults[:_SHOWN])}{more}"
        raise ConfigError(KEY, source, reason, "Set model.name and model.options to those of the file")
    own = model.state_dict()
    with torch.no_grad():
        for name in fit.taken:
            own[name].copy_(given[name])
    said = f"{KEY} = {source!r}: {len(fit.taken)} tensors taken"
    return said + (f"; {', '.join(fit.fresh)} left fresh: the head there is another" if fit.fresh else "")


def fit_of(own: Tensors, given: Tensors, parts: Mapping[str, str]) -> Fit:
    """Match two state dicts by name and shape; `parts` says which are the head (`models/parts.py`)."""
    head = [name for name in own if parts[name] == "head"]
    # A head is taken whole or not at all: its old bias is useless beside fresh weights.
    is_head_taken = all(name in given and given[name].shape == own[name].shape for name in head)
    faults = [f"{name} is not in the model" for name in given if name not in own]
    taken = []
    for name, tensor in own.items():
        if parts[name] == "head":
            taken += [name] if is_head_taken else []
        elif name not in given:
            faults += [] if name.endswith(_COUNTER) else [f"{name} is missing"]
        elif given[name].shape != tensor.shape:
            shapes = f"{list(given[name].shape)} there, {list(tensor.shape)} in the model"
            faults.append(f"{name} has shape {shapes}")
        else:
            taken.append(name)
    return Fit(taken, [] if is_head_taken else head, faults)


def read_weights(model_name: str, source: str) -> dict[str, torch.Tensor]:
    """The tensors that a source holds; refused in one line if it is none of those known."""
    if source.startswith(PRETRAINED):
        return pretrained(model_name, source.removeprefix(PRETRAINED), key=KEY)
    path = Path(source).expanduser()
    try:
        if path.is_dir():
            return _in_folder(path, source)
        return _in_safetensors(path) if path.suffix == ".safetensors" else _in_checkpoint(path)
    except (OSError, SafetensorError, RunDirError, checkpoint_file.Damaged) as error:
        raise ConfigError(KEY, source, f"cannot be read ({error})", _FORMS) from None


def _in_folder(path: Path, source: str) -> dict[str, torch.Tensor]:
    if (path / WEIGHTS).exists():
        return _in_safetensors(path / WEIGHTS)
    state = Checkpoints(path / CHECKPOINTS).load_newest()
    if state is None:
        raise ConfigError(KEY, source, f"has neither {CHECKPOINTS}/ nor {WEIGHTS}", _FORMS)
    return trained_weights(state)


def _in_safetensors(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path)


def _in_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    return trained_weights(checkpoint_file.read(path))


def trained_weights(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The weights that a checkpoint's run would be judged by: their average, where there is one."""
    return dict(state.get("ema", state["model"]))
