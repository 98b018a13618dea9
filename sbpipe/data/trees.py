"""Trees: batches of any form, with tensors inside the containers that a user's collate function builds.

Tensors go between processes as raw bytes, the rest as a pickle that refers to them by place. Only processes
of one program read each other's pickles. It must not know what a batch means, nor who loads it.
"""

import dataclasses
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from sbpipe.machine.copies import Uploads


class Packed(NamedTuple):
    """A tree without its tensors, and the tensors in the order of its references."""

    skeleton: bytes
    tensors: list[torch.Tensor]


def packed(tree: Any) -> Packed:
    """Split a tree into skeleton and tensors."""
    into, tensors = io.BytesIO(), list[torch.Tensor]()
    _Packer(into, tensors).dump(tree)
    return Packed(into.getvalue(), tensors)


def unpacked(skeleton: bytes, tensors: Sequence[torch.Tensor]) -> Any:
    """Put a tree together again."""
    return _Unpacker(io.BytesIO(skeleton), tensors).load()


class _Packer(pickle.Pickler):
    def __init__(self, into: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(into, protocol=5)
        self._tensors = tensors

    def persistent_id(self, value: Any) -> int | None:
        """The place of a plain tensor; anything else, even a sparse tensor or a subclass, is pickled."""
        if type(value) is not torch.Tensor or value.layout != torch.strided or value.device.type != "cpu":
            return None
        self._tensors.append(value.detach())
        return len(self._tensors) - 1


class _Unpacker(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__(source)
        self._tensors = tensors

    def persistent_load(self, place: int) -> torch.Tensor:
        return self._tensors[place]


def moved(tree: Any, uploads: Uploads) -> Any:
    """The same tree with its tensors on a device; other values stay unchanged, unless they have a `to`."""
    if uploads.device.type == "cpu":
        return _with_tensors(tree, lambda tensor: tensor.to(uploads.device), uploads.device)
    here = list[torch.Tensor]()
    _find(tree, here)
    # In the order in which they were found.
    arrived = iter(uploads.apart(here))
    return _with_tensors(tree, lambda _: next(arrived), uploads.device)


def _parts_of(tree: Any) -> list[Any] | None:
    """The contents of a container, in order; None if it is none that we know."""
    if isinstance(tree, dict):
        return list(tree.values())
    if isinstance(tree, (list, tuple)):
        return list(tree)
    # Objects with a `to` move themselves.
    if hasattr(tree, "to") or isinstance(tree, type) or not dataclasses.is_dataclass(tree):
        return None
    return [getattr(tree, field.name) for field in dataclasses.fields(tree) if field.init]


def _find(tree: Any, found: list[torch.Tensor]) -> None:
    if isinstance(tree, torch.Tensor):
        found.append(tree)
    else:
        for part in _parts_of(tree) or ():
            _find(part, found)


def _with_tensors(tree: Any, of: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> Any:
    if isinstance(tree, torch.Tensor):
        return of(tree)
    parts = _parts_of(tree)
    if parts is None:
        return tree.to(device) if hasattr(tree, "to") and not isinstance(tree, type) else tree
    parts = [_with_tensors(part, of, device) for part in parts]
    if isinstance(tree, dict):
        return _same_kind(tree, dict(zip(tree, parts, strict=True)))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*parts)
    if isinstance(tree, (list, tuple)):
        return type(tree)(parts)
    names = [field.name for field in dataclasses.fields(tree) if field.init]
    return dataclasses.replace(tree, **dict(zip(names, parts, strict=True)))


def joined(trees: Sequence[Any]) -> Any:
    """The batch that torch's default collate function makes of all examples, joined from batches of parts."""
    first = trees[0]
    if len(trees) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return torch.cat(list(trees))
    if isinstance(first, Mapping):
        return _same_kind(first, {key: joined([tree[key] for tree in trees]) for key in first})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(joined(parts) for parts in zip(*trees, strict=True)))
    # A list of words has one element per example; any other list has one element per column.
    if first and isinstance(first[0], (str, bytes)):
        return type(first)(word for tree in trees for word in tree)
    return type(first)(joined(parts) for parts in zip(*trees, strict=True))


def _same_kind(like: Any, content: dict[Any, Any]) -> Any:
    if type(like) is dict:
        return content
    try:
        return type(like)(content)
    except TypeError:
        return content
