"""Snapshots of a sharded model: whole tensors are gathered, a few at a time, into a slot.

All ranks call it at the same steps, whether the snapshot is read or not. It must not know the readers.
"""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import nn

from sbpipe.records import Manifest
from sbpipe.weights.manifest import copy, tensors_of

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

BUCKET_BYTES = 64 << 20
"""The most bytes of whole tensors on a device at one time; a larger tensor is a bucket by itself."""


def is_share(value: object) -> "TypeGuard[DTensor]":
    """Whether it is a sharded tensor.

    Before the class is loaded there is none. Loading it takes as long as half of torch, and every selector
    and every trainer without other ranks would wait for what it never uses.
    """
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(value, loaded.DTensor)


def _is_cut(module: nn.Module) -> bool:
    loaded = sys.modules.get("torch.distributed.fsdp")
    return loaded is not None and isinstance(module, loaded.FSDPModule)


class Shards:
    """The live tensors of one layout, gathered bucket by bucket; one with two names only once."""

    def __init__(self, model: nn.Module, manifest: Manifest, bucket_bytes: int = BUCKET_BYTES) -> None:
        self._model, self._manifest = model, manifest
        self._bucket_bytes = bucket_bytes

    @staticmethod
    def are_in(model: nn.Module) -> bool:
        """Whether a model is sharded, even if it is whole for the moment, as after an evaluation."""
        return any(map(_is_cut, model.modules())) or any(map(is_share, model.parameters()))

    @torch.no_grad()
    def copy_into(self, views: list[torch.Tensor] | None) -> None:
        """Gather, and copy into views of a slot in the order of the layout; None: only contribute
        this share.
        """
        # First: asking for the state shards again what was whole, and sizes change by that.
        live = tensors_of(self._model, self._manifest)
        sizes = [tensor.numel() * tensor.element_size() for tensor in live]
        for bucket in buckets(sizes, self._bucket_bytes):
            whole = [_whole(live[place]) for place in bucket]
            if views is not None:
                copy([views[place] for place in bucket], whole)
            del whole  # before the next bucket is gathered, not after


def buckets(sizes: list[int], most_bytes: int) -> Iterator[list[int]]:
    """Split places into buckets of at most `most_bytes`, in order; a larger tensor is a bucket by itself."""
    bucket: list[int] = []
    num_bytes = 0
    for place, size in enumerate(sizes):
        if bucket and num_bytes + size > most_bytes:
            yield bucket
            bucket, num_bytes = [], 0
        bucket.append(place)
        num_bytes += size
    if bucket:
        yield bucket


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if is_share(tensor) else tensor
