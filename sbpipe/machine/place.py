"""Which rank this process is, and how often its ranks were started again: as torchrun tells. No torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_NAMELESS = "none"
"""What torchrun says where it was given no name."""


@dataclass(frozen=True)
class Place:
    """One rank among several; `local_*` count those of this host."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    num_restarts: int = 0
    """How often this host's torchrun has started its ranks again; not told where nodes came or went."""
    may_restart: bool = False
    """Whether torchrun would start them again."""
    launch: str = ""
    """What tells this launch from others, the same after each restart (`launch_in`); "" if nothing does."""

    def cores(self, available: list[int], threads: int) -> list[int]:
        """Its share of the cores: equal shares side by side, `threads` of each if that is set."""
        each = max(1, len(available) // self.local_world)
        first = self.local_rank * each % len(available)
        return available[first : first + each][: threads or None]


ALONE = Place(0, 1, 0, 1)


def own_place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """This process's place; None if no launcher of ranks started it."""
    try:
        rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    return Place(
        rank,
        world,
        _number(environment, "LOCAL_RANK", rank),
        _number(environment, "LOCAL_WORLD_SIZE", world),
        _number(environment, "TORCHELASTIC_RESTART_COUNT", 0),
        _number(environment, "TORCHELASTIC_MAX_RESTARTS", 0) > 0,
        launch_in(environment),
    )


def launch_in(environment: Mapping[str, str] = os.environ) -> str:
    """What tells this process's launch by torchrun from others; empty if nothing does.

    Its name (`--rdzv-id`), or where it was given none, the folder that torchrun made for the ranks of rank
    0's host: each torchrun makes one, under a name that no other has, and keeps it over restarts.
    """
    name = environment.get("TORCHELASTIC_RUN_ID", "")
    if name != _NAMELESS:
        return name
    is_beside_rank_0 = environment.get("GROUP_RANK", "") == "0"
    # FOLDER/attempt_2/0/error.json
    parents = Path(environment.get("TORCHELASTIC_ERROR_FILE", "")).parents
    is_known = is_beside_rank_0 and len(parents) > 2 and parents[1].name.startswith("attempt_")
    return str(parents[2]) if is_known else ""


def _number(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else otherwise
