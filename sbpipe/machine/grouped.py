"""Copies many tensors in few kernels. It must not know what they are.

An accelerator copies a list of pairs in one kernel only if all targets have one type, all sources one type,
and both tensors of each pair the same strides (ATen/native/ForeachUtils.h). With a single pair that differs,
such as the counter of a normalisation layer, every pair of the list gets its own kernel.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def copy_grouped(into: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Copy pair by pair, casting where types differ, in as few kernels as the device allows."""
    if not into:
        return
    if into[0].device.type == "cpu":
        torch._foreach_copy_(list(into), list(source))
        return
    groups: defaultdict[tuple[torch.dtype, torch.dtype], list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for to, of in zip(into, source, strict=True):
        if _lie_alike(to, of):
            groups[to.dtype, of.dtype].append((to, of))
        else:
            # One by one, outside of the lists: weights that are channels-last only on one side.
            to.copy_(of)
    for pairs in groups.values():
        torch._foreach_copy_([to for to, _ in pairs], [of for _, of in pairs])


def _lie_alike(to: Tensor, of: Tensor) -> bool:
    """Whether two tensors have the same strides; the stride of an axis of length 1 does not matter."""
    return to.shape == of.shape and all(
        size == 1 or one == other for size, one, other in zip(to.shape, to.stride(), of.stride(), strict=True)
    )
