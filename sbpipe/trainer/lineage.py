"""Which settings a checkpoint belongs to, and whether a run may go on from it. Knows no file.

It may under the same settings, or with a longer budget: nothing else in the state depends on the budget.
"""

from pathlib import Path
from typing import Any

from sbpipe.config import BUDGETS, Config, budget, digest
from sbpipe.errors import RunDirError


def lineage_of(config: Config) -> dict[str, Any]:
    """What a checkpoint keeps of its settings."""
    return {"digest": digest(config), "lineage": digest(config, but=BUDGETS), "budget": budget(config)}


def check_lineage(state: dict[str, Any], config: Config, where: Path) -> str:
    """A note on what changes by going on under these settings, "" for nothing; refuses other settings."""
    now = lineage_of(config)
    if state["digest"] == now["digest"]:
        return ""
    if state.get("lineage") != now["lineage"]:
        raise RunDirError(
            f"the checkpoint in {where} was written under other settings. Resume without changing them"
        )
    ((key, old),), (new,) = state["budget"].items(), now["budget"].values()
    return (
        f"lengthened: {key} = {new:g} instead of {old:g}. The learning rate follows its schedule over the "
        "new total: where it had decayed already it rises again"
    )
