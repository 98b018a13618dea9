"""Broadcasts a state of rank 0: its structure as JSON, its tensors as bytes. Knows no checkpoint."""

from typing import Any

import torch

from sbpipe.trainer.ranks.group import Group

_TENSOR, _TABLE, _LIST = "tensor", "table", "list"


def spread(group: Group, state: Any) -> Any:
    """Rank 0 passes a state of dicts, lists, numbers and tensors, the others None; all ranks return it."""
    tensors: list[torch.Tensor] = []
    form = group.spread_text(_form_of(state, tensors) if group.rank == 0 else None)
    return _rebuilt(group, form, iter(tensors))


def _form_of(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {_TENSOR: [str(value.dtype).removeprefix("torch."), list(value.shape)]}
    if isinstance(value, dict):
        # As pairs: an optimizer's state has integer keys, which JSON would turn into text.
        return {_TABLE: [[key, _form_of(inner, tensors)] for key, inner in value.items()]}
    if isinstance(value, (list, tuple)):
        return {_LIST: [_form_of(inner, tensors) for inner in value]}
    return value


def _rebuilt(group: Group, form: Any, given: Any) -> Any:
    if not isinstance(form, dict):
        return form
    if _TABLE in form:
        return {key: _rebuilt(group, inner, given) for key, inner in form[_TABLE]}
    if _LIST in form:
        return [_rebuilt(group, inner, given) for inner in form[_LIST]]
    kind, shape = form[_TENSOR]
    if group.rank == 0:
        tensor = next(given).cpu().contiguous()
    else:
        tensor = torch.empty(shape, dtype=getattr(torch, kind))
    # As bytes: not every backend sends every type.
    group.spread(tensor.reshape(-1).view(torch.uint8), "rank 0's checkpoint")
    return tensor
