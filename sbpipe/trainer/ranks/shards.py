"""A sharded model (FSDP2): sharding, gathering, restoring. It must not know steps.

A checkpoint holds whole tensors, or shares that are joined or cut differently when they are read: a run may
go on with another number of ranks, or with one.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sbpipe.weights.gather import is_share

if TYPE_CHECKING:
    from sbpipe.trainer.checkpoint_shares import Index


def shard(model: nn.Module, device: torch.device, world: int) -> None:
    """Shard a model over all ranks, in place; a block is whole only while it computes."""
    # Imported here and not above: trainers that do not shard need not wait for it at start-up.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world,))
    with torch.no_grad():
        for parameter in model.parameters():
            # A channels-last tensor cannot be sharded; the forward pass restores that layout.
            parameter.data = parameter.data.contiguous()
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The outermost elements of module lists and sequences: what a forward pass calls one by one.

    A block that shares a parameter with the rest stays with the root: two blocks cannot both own it.
    """
    found: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and not _is_inside(module, found):
            found += [block for block in module if next(block.parameters(), None) is not None]
    uses: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    # The same block may occur in two places.
    different = list({id(block): block for block in found}.values())
    return [block for block in different if all(uses[id(each)] == 1 for each in block.parameters())]


def _is_inside(module: nn.Module, blocks: list[nn.Module]) -> bool:
    return any(inner is module for block in blocks for inner in block.modules())


def room_for(
    index: "Index", lives: Mapping[str, Mapping[str, torch.Tensor]], optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """Memory for the tensors of an index, sharded as the live ones; tensors that are not live are left out.

    `lives` has the state of each model by its kind; names of tensors begin with the kind.
    """
    from sbpipe.trainer.checkpoint_shares import shape_of, type_of

    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    room: dict[str, torch.Tensor] = {}
    for name in index["tensors"]:
        kind, _, rest = name.partition("/")
        if kind == "optimizer":  # optimizer/state/PLACE/NAME
            live: torch.Tensor | None = parameters[int(rest.split("/")[1])].detach()
        else:
            live = lives[kind].get(rest) if kind in lives else None
        if live is None:
            continue
        # Optimizer state of another shape than its parameter stays whole.
        is_alike = live.shape == shape_of(index, name)
        room[name] = (
            torch.empty_like(live, dtype=type_of(index, name))
            if is_alike
            else torch.empty(shape_of(index, name), dtype=type_of(index, name))
        )
    return room


def gathered(value: Any, *, is_kept: bool) -> Any:
    """A state with whole tensors on the CPU, gathered one by one; all ranks join, rank 0 keeps them."""
    if is_share(value):
        whole = value.full_tensor().detach()
        return whole.cpu().clone() if is_kept else None
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone() if is_kept else None
    if isinstance(value, dict):
        return {name: gathered(inner, is_kept=is_kept) for name, inner in value.items()}
    return [gathered(inner, is_kept=is_kept) for inner in value] if isinstance(value, list) else value


def like(live: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """A whole tensor in the form of a live one: this rank's share of it, if the live one is sharded."""
    if not is_share(live) or is_share(whole):
        return whole
    from torch.distributed.tensor import distribute_tensor

    # Every rank has the whole tensor: nothing is sent.
    there = whole.to(live.device_mesh.device_type, live.dtype)
    return distribute_tensor(there, live.device_mesh, live.placements, src_data_rank=None)


def load_model(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Load whole tensors into a model, sharded or not."""
    live = model.state_dict()
    model.load_state_dict({name: like(live[name], whole) for name, whole in state.items() if name in live})


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load whole tensors into an optimizer of a model that is sharded or not."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    places = [place for group in state["param_groups"] for place in group["params"]]
    shared = {
        place: {
            name: like(parameter, value)
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape
            else value
            for name, value in state["state"].get(place, {}).items()
        }
        for place, parameter in zip(places, parameters, strict=True)
        if place in state["state"]
    }
    optimizer.load_state_dict({**state, "state": shared})
