"""A global batch cut into the ranks' shares, and joined again. Pure: knows no process and no model.

Rank r of n has the examples at positions r, r + n, r + 2n, ...: shares are disjoint, complete and differ by
one example at most.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch

from sbpipe.records import Ids

Column = TypeVar("Column", Ids, torch.Tensor)


def share_of(column: Column, rank: int, world: int) -> Column:
    """A rank's part of a column of the global batch."""
    return column[rank::world]


def share_size(count: int, rank: int, world: int) -> int:
    """How many of `count` examples a rank has; 0 where there are more ranks than examples."""
    return max(0, -(-(count - rank) // world))


def largest_share(count: int, world: int) -> int:
    """The size of the first rank's share, which none exceeds."""
    return share_size(count, 0, world)


def shown(column: Ids, rank: int, world: int) -> Ids:
    """What a rank loads: its share, or the first example of the batch where its share is empty.

    That example must go through the model, with weight 0: the others wait for the rank in every collective.
    """
    own = share_of(column, rank, world)
    return own if len(own) else column[:1]


def joined(shares: Sequence[torch.Tensor], count: int) -> torch.Tensor:
    """The column of the global batch, from what each rank has of it; a share may be padded at its end."""
    whole = shares[0].new_empty(count)
    for rank, share in enumerate(shares):
        whole[rank :: len(shares)] = share[: share_size(count, rank, len(shares))]
    return whole
