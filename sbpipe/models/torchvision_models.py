"""Torchvision's models by name, untrained, and its weights for them. The only file here that imports it.

The import is inside a function: it takes a second, which our own models do not need. It must not know how
weights are seeded.
"""

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, get_type_hints

import torch
from torch import nn

from sbpipe.errors import ConfigError

# Their auxiliary heads would return a tuple while training, and without init_weights torchvision warns.
_DEFAULTS: dict[str, dict[str, Any]] = {
    name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")
}
# Options of torchvision's functions that the classes do not have.
_MORE_OPTIONS = {
    name: {"width_mult", "reduced_tail", "dilated"} for name in ("mobilenet_v3_large", "mobilenet_v3_small")
}


PRETRAINED = "torchvision:"
"""The prefix of a setting that names weights of torchvision."""
_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")
_OLD_DENSENET = re.compile(r"^(.*denselayer\d+\.(?:norm|relu|conv))\.([12]\.)")


def torchvision_names() -> list[str]:
    """All classifiers of the installed torchvision; models for other tasks have other outputs."""
    models = _zoo()
    return [*models.list_models(module=models), *models.list_models(module=models.video)]


def torchvision_options(name: str) -> set[str]:
    """The options of a model: the arguments of the class that its function returns.

    Some of these classes accept unknown keywords, so a misspelt option would have no effect. So options are
    checked before building.
    """
    built_class = get_type_hints(_zoo().get_model_builder(name))["return"]
    parameters = inspect.signature(built_class).parameters.values()
    named = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
    return (named | _MORE_OPTIONS.get(name, set())) - {"num_classes"}


def build_torchvision(name: str, num_classes: int, options: Mapping[str, Any]) -> nn.Module:
    """A model with fresh weights."""
    model: nn.Module = _zoo().get_model(
        name, weights=None, num_classes=num_classes, **{**_DEFAULTS.get(name, {}), **options}
    )
    return model


def pretrained(name: str, which: str, *, key: str) -> dict[str, torch.Tensor]:
    """The tensors of torchvision's weights for a model; downloaded unless they are in torch's hub cache.

    `which` is DEFAULT or a name of the model's weights, and `key` is the setting that asks for them.
    """
    given, models = PRETRAINED + which, _zoo()
    if name not in torchvision_names():
        way_out = "Set model.name to one of torchvision's, or name a file"
        raise ConfigError(key, given, f"model.name = {name!r} is no model of torchvision", way_out)
    known = models.get_model_weights(name).__members__
    if which not in known:
        offer = ", ".join(f"{PRETRAINED}{one}" for one in known) or "none"
        raise ConfigError(key, given, f"torchvision has no such weights for {name}", f"It has: {offer}")
    try:
        # Tensors only: a file in the cache may be written by anybody.
        state = known[which].get_state_dict(progress=False, check_hash=True, weights_only=True)
    except (OSError, RuntimeError, ValueError, UnpicklingError) as error:
        place = Path(torch.hub.get_dir()) / "checkpoints" / Path(known[which].url).name
        said = (str(error).splitlines() or [type(error).__name__])[0]
        way_out = f"Check the network, or put {known[which].url} at {place}"
        raise ConfigError(key, given, f"cannot be fetched or read ({said})", way_out) from None
    # As torchvision does: its files still have the names of an older densenet, and heads that are optional.
    return {
        _OLD_DENSENET.sub(r"\1\2", tensor_name): tensor
        for tensor_name, tensor in state.items()
        if not tensor_name.startswith(_AUXILIARY)
    }


def _zoo() -> Any:
    from torchvision import models  # type: ignore[import-untyped]

    return models
