"""Builds a network on the CPU from `model.name`, `model.options` and a seed. Knows no training.

A name is one of `BUILDERS`, a classifier of torchvision (`resnet50`, `vit_b_16`, ...), or the user's own
`module:function`. The latter is called as `function(num_classes=..., input_shape=..., **options)`, where
`input_shape` is the shape of one input without the batch axis, and returns an `nn.Module` in float32; its
output may be anything that the loss understands.

The initial weights are a function of the seed only, because both roles build the model and a run must be
repeatable. The global random state is not changed.
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import torch
from torch import nn

from sbpipe.config import ModelConfig
from sbpipe.config.plugins import accepted_keywords, import_plugin, is_plugin
from sbpipe.errors import ModelError
from sbpipe.models.densenet import densenet_cifar
from sbpipe.models.mobilenet import mobilenet_v2_cifar
from sbpipe.models.probe import probe
from sbpipe.models.resnet import resnet18_cifar, small_resnet
from sbpipe.models.small_cnn import small_cnn
from sbpipe.models.torchvision_models import build_torchvision, torchvision_names, torchvision_options
from sbpipe.models.weighing import bytes_made
from sbpipe.models.wide_resnet import wide_resnet
from sbpipe.randomness import key

Options = Mapping[str, Any]

MOST = 4096
"""Larger depths and widths are typos, and would take hours or all memory to build."""

# Each takes (num_classes, channels, *, its options).
BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "small_cnn": small_cnn,
    "small_resnet": small_resnet,
    "resnet18_cifar": resnet18_cifar,
    "wide_resnet": wide_resnet,
    "mobilenet_v2_cifar": mobilenet_v2_cifar,
    "densenet_cifar": densenet_cifar,
}


def build_model(
    config: ModelConfig,
    *,
    num_classes: int,
    input_shape: tuple[int, ...],
    seed: int,
    input_dtype: torch.dtype = torch.float32,
    is_tried: bool = True,
) -> nn.Module:
    """The model in training mode, its weights drawn from `seed`.

    It is tried on a batch of zeros, unless it can be called with real batches only.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed: it reseeds the accelerators too, which fork_rng(devices=[]) does not restore.
        torch.default_generator.manual_seed(key(seed, "model"))
        model = _build(config.name, num_classes, input_shape, config.options)
        if is_tried:
            probe(
                model,
                config.name,
                input_shape,
                input_dtype,
                num_outputs=None if is_plugin(config.name) else num_classes,
            )
    return model


def weigh_model(config: ModelConfig, *, num_classes: int, input_shape: tuple[int, ...]) -> int:
    """Bytes that its parameters and buffers would take; 0 for a user's own, which would have to be made."""
    if is_plugin(config.name):
        return 0
    with torch.random.fork_rng(devices=[]):
        return bytes_made(lambda: _build(config.name, num_classes, input_shape, config.options))


def _build(name: str, num_classes: int, input_shape: tuple[int, ...], options: Options) -> nn.Module:
    if is_plugin(name):
        return _build_plugin(name, num_classes, input_shape, options)
    if name in BUILDERS:
        return _build_own(name, num_classes, input_shape, options)
    known = torchvision_names()
    if name not in known:
        nearest = difflib.get_close_matches(name.lower(), [*BUILDERS, *known], n=1, cutoff=0.0)[0]
        ours = f"ours are {', '.join(BUILDERS)}; torchvision's classifiers and module:function work too"
        raise ModelError(
            f"model.name = {name!r}: unknown model. The nearest known name is {nearest!r}; {ours}"
        )
    _check_names(name, options, torchvision_options(name))
    try:
        return build_torchvision(name, num_classes, options)
    # Torchvision's classes raise these for wrong option values.
    except (
        TypeError,
        ValueError,
        RuntimeError,
        AssertionError,
        AttributeError,
        ArithmeticError,
        LookupError,
    ) as error:
        raise _refused(name, options, error) from error


def _build_own(name: str, num_classes: int, input_shape: tuple[int, ...], options: Options) -> nn.Module:
    builder = BUILDERS[name]
    kinds = get_type_hints(builder)
    # The other keywords of a builder are its options; their annotations say which values are legal.
    for given in ("num_classes", "channels", "return"):
        del kinds[given]
    _check_names(name, options, set(kinds))
    for option, value in options.items():
        is_number = isinstance(value, (kinds[option], int)) and not isinstance(value, bool)
        if not is_number or not (1 if kinds[option] is int else 0) <= value <= MOST:
            limit = "a whole number from 1" if kinds[option] is int else "a number from 0"
            raise ModelError(
                f"model.options.{option} = {value!r}: must be {limit} to {MOST}. {_listing(name, set(kinds))}"
            )
    if len(input_shape) != 3:
        shape = f"inputs of shape {list(input_shape)}"
        raise ModelError(
            f"model.name = {name!r}: takes images [channels, height, width], the data has {shape}. Name a "
            "model of your own: module:function"
        )
    try:
        return builder(num_classes, input_shape[0], **options)
    except (ValueError, RuntimeError) as error:
        raise _refused(name, options, error) from error


def _build_plugin(name: str, num_classes: int, input_shape: tuple[int, ...], options: Options) -> nn.Module:
    function = import_plugin("model.name", name)
    accepted = accepted_keywords(function)
    if accepted is not None and not {"num_classes", "input_shape"} <= accepted:
        way_out = "Give it the keywords num_classes and input_shape (a tuple without the batch axis)"
        raise ModelError(f"model.name = {name!r}: takes ({', '.join(sorted(accepted))}). {way_out}")
    _check_names(name, options, (accepted or set(options)) - {"num_classes", "input_shape"})
    model = function(num_classes=num_classes, input_shape=input_shape, **options)
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"model.name = {name!r}: returned a {type(model).__name__}. Return a torch.nn.Module"
        )
    return model


def _check_names(name: str, options: Options, accepted: set[str]) -> None:
    for option, value in options.items():
        if option not in accepted:
            raise ModelError(
                f"model.options.{option} = {value!r}: {name} has no such option. {_listing(name, accepted)}"
            )


def _listing(name: str, accepted: set[str]) -> str:
    return f"The options of {name} are: {', '.join(sorted(accepted)) or 'none'}"


def _refused(name: str, options: Options, error: Exception) -> ModelError:
    return ModelError(f"model.options = {dict(options)!r}: {name} cannot be built with them ({error})")
