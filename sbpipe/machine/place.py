"""This process's rank, and how often torchrun has restarted its ranks, from the environment. No torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_NAMELESS = "none"
"""Torchrun's value for a launch without a name."""


@dataclass(frozen=True)
class Place:
    """One rank among several; `local_*` count those of this host."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    num_restarts: int = 0
    """How often this host's torchrun has restarted its ranks; unknown if nodes came or went."""
    may_restart: bool = False
    """Whether torchrun would restart them."""
    launch: str = ""
    """The identity of this launch, which restarts keep (`launch_in`); "" if it has none."""

    def cores(self, available: list[int], threads: int) -> list[int]:
        """Its share of the cores: equal shares of neighbours, of which `threads` are used if that is set."""
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
    """The identity of this process's launch by torchrun; empty if it has none.

    It is the launch's name (`--rdzv-id`). Without a name it is the folder that torchrun made for the ranks of
    rank 0's host: each torchrun makes one with a unique name, and keeps it over restarts.
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
