"""Assigns each tensor of a model to a part, so that small parts can be published more often.

It must not know how or when weights travel. The parts, in the order in which they are decided:

    norm   parameters and buffers of normalisation layers, running statistics included
    head   the layer that produces the output, unless it is large: the last registered one with a weight of
           two or more axes
    bias   any other parameter of one axis whose name ends in "bias"
    body   the rest: nearly all of the bytes
"""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

_MOST_SHARE, _SMALL_BYTES = 0.02, 4 << 20
"""A head is fast up to so many bytes, or such a share of the model; the head of a vocabulary is larger."""

_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def parts_of(model: nn.Module) -> dict[str, str]:
    """The part ("norm", "head", "bias" or "body") of every tensor of the state dict, by name."""
    tensors = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    owners = {name: _owner_path(name) for name in tensors}
    norms = {path for path in owners.values() if _is_norm(model.get_submodule(path))}
    head = _head_path(model, owners, norms)
    # A tensor that a model has under two names is sent once.
    repeated = dict(model.named_parameters(remove_duplicate=False)).keys() - dict(model.named_parameters())
    total = sum(tensor.nbytes for name, tensor in tensors.items() if name not in repeated)
    if sum(tensors[name].nbytes for name in tensors if owners[name] == head) > _most_bytes(total):
        head = None
    return {name: _part(name, tensors[name], owners[name], norms, head) for name in tensors}


def _most_bytes(total: int) -> float:
    return max(_SMALL_BYTES, _MOST_SHARE * total)


def _part(name: str, tensor: torch.Tensor, owner: str, norms: set[str], head: str | None) -> str:
    if owner in norms:
        return "norm"
    if owner == head:
        return "head"
    return "bias" if tensor.dim() == 1 and name.endswith("bias") else "body"


def _owner_path(name: str) -> str:
    """The layer that a tensor belongs to; torch keeps a parametrised weight two levels below its layer."""
    layer, is_parametrised, _ = name.partition("parametrizations.")
    return layer.removesuffix(".") if is_parametrised else name.rpartition(".")[0]


def _is_norm(module: nn.Module) -> bool:
    """A normalisation layer of torch, or of another library: named so, with vectors only."""
    if isinstance(module, _NORMS):
        return True
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return "norm" in type(module).__name__.lower() and all(tensor.dim() <= 1 for tensor in own)


def _head_path(model: nn.Module, owners: Mapping[str, str], norms: set[str]) -> str | None:
    weights = [
        name
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.dim() >= 2 and name in owners
    ]
    candidates = [owners[name] for name in weights if owners[name] not in norms]
    return candidates[-1] if candidates else None
