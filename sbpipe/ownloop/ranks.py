"""Common to all ranks of a user's own loop: their group, and how a share of the batch is weighed.

It must not know how gradients are averaged: that is the user's DDP or FSDP.
"""

import copy
import sys

import torch
from torch import nn

from sbpipe.config import Config
from sbpipe.errors import ModelError, UserError
from sbpipe.machine.place import own_place
from sbpipe.trainer.ranks.group import Gathering, Group
from sbpipe.trainer.ranks.share import share_size
from sbpipe.weights.gather import Shards


def num_ranks() -> int:
    """How many processes train together, as far as this is known yet."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    place = own_place()
    return 1 if place is None else place.world


def refuse_ranks(framework: str) -> None:
    """Refuse several ranks in frameworks that split batches themselves: they would train shares of shares."""
    if num_ranks() > 1:
        raise UserError(
            f"this is one of {num_ranks()} training processes, and {framework} cuts batches between them by "
            "itself. Train in one process, or write the loop: sbpipe.select serves several ranks there"
        )


def whole_copy(model: nn.Module) -> nn.Module:
    """The model for selectors, copied to the CPU before it is sharded."""
    if Shards.are_in(model):
        raise ModelError(
            "select: the model is sharded already (fully_shard), and selectors score with a whole one. Call "
            "sbpipe.select before fully_shard, and loader.attach(optimizer) after it"
        )
    return copy.deepcopy(model).cpu()


def group_of(config: Config, device: torch.device) -> Group | None:
    """The ranks of this program; None for a single process."""
    if config.num_ranks == 1:
        return None
    if not torch.distributed.is_initialized():
        raise UserError(
            f"select: this is one of {config.num_ranks} training processes, and they have no process group. "
            "Before the first batch, call torch.distributed.init_process_group() and wrap the model in "
            "DistributedDataParallel"
        )
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return Group(rank, world, device, batch_size=config.train.batch_size, wait_s=config.train.ranks_wait_s)


class Weighing:
    """Gathers losses and scales weights, in the same way on every rank."""

    def __init__(self, group: Group, part_size: int) -> None:
        self.group, self.part_size = group, part_size
        self.own_size = share_size(part_size, group.rank, group.world)

    def gather(self, losses: torch.Tensor) -> Gathering:
        """Start to gather this share's losses on rank 0."""
        return self.group.gather(losses.detach()[: self.own_size], self.part_size)

    def scaled(self, weights: torch.Tensor | None, losses: torch.Tensor) -> torch.Tensor | None:
        """Weights under which the mean over a share, averaged over the ranks, is the mean over the batch.

        A rank without an example of its own is shown another's, which counts for nothing.
        """
        factor = self.own_size * self.group.world / self.part_size
        if weights is None:
            return None if factor == 1.0 else torch.full_like(losses.detach(), factor)
        return weights.to(losses.detach()) * factor


def has_program_failed() -> bool:
    """Whether this program is ending with a traceback: then the other ranks must not wait for it."""
    return getattr(sys, "last_value", None) is not None
