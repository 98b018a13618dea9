"""Whether a study may go on in a folder: compares plans, and finished cells with how they would run today.

A plan holds only the given settings; defaults may change between versions. A run's own config.json has all
settings. Cells that differ in one would mix two kinds of run in one mean.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sbpipe.config import Config, flatten, is_local, resolve, to_json
from sbpipe.errors import ConfigError, RunDirError
from sbpipe.runs.directory import CONFIG
from sbpipe.studies.cells import toml_or_none
from sbpipe.studies.plan import PlannedCell

# These only list the plan's contents: growing, they do not change how a finished cell ran.
_MAY_GROW = ("seeds", "cells", "strategies", "varied", "tasks", "budgets")


def differences(there: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How two plans differ, in a few words each, changed settings first; [] if they are the same."""
    if there.get("kind") != now["kind"]:
        return [f"it is a {there.get('kind')}, not a {now['kind']}"]
    before = {cell["cell"]: cell for cell in there.get("cells", [])}
    after = {cell["cell"]: cell for cell in now["cells"]}
    # A dictionary as an ordered set: a difference that many cells share is named once.
    found: dict[str, None] = {}
    for name in sorted(after.keys() & before.keys()):
        old, new = before[name]["settings"], after[name]["settings"]
        for key in sorted(key for key in {*old, *new} if old.get(key) != new.get(key)):
            found[f"{key} is {toml_or_none(old.get(key))} there and {toml_or_none(new.get(key))} here"] = None
    keys = [key for key in now if key != "cells" and there.get(key) != now[key]]
    found |= {
        f"{key} is {toml_or_none(there.get(key))} there and {toml_or_none(now[key])} here": None
        for key in keys
    }
    found |= {f"cell {name} is only there": None for name in before if name not in after}
    found |= {f"cell {name} is only here": None for name in after if name not in before}
    return list(found) or (["the order of the cells"] if there != now else [])


def has_grown(there: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a plan is an earlier one plus seeds, values, arms or tasks, with every old cell unchanged."""
    after = {cell["cell"]: cell for cell in now["cells"]}
    is_same = all(there.get(key) == now[key] for key in now if key not in _MAY_GROW)
    return is_same and all(after.get(cell["cell"]) == cell for cell in there.get("cells", []))


def changed_keys(ran_with: Mapping[str, Any], now: Config) -> dict[str, tuple[Any, Any]]:
    """The settings in which a run differs from `now`, as (then, now)."""
    today = flatten(json.loads(to_json(now)))
    # Keys that only one side knows cannot be compared; keys that a machine may choose make no other run.
    shared = [key for key in ran_with if key in today and not is_local(key)]
    return {key: (ran_with[key], today[key]) for key in shared if ran_with[key] != today[key]}


def refuse_changed(cells: Sequence[tuple[PlannedCell, Path]]) -> None:
    """Refuse finished cells, given with their run directories, that ran with other settings."""
    found = [
        (cell, path, keys)
        for cell, path in cells
        if (keys := changed_keys(_settings_in(path), resolve(cell.settings)))
    ]
    if not found:
        return
    cell, path, keys = found[0]
    key, (then, now) = next(iter(keys.items()))
    more = f" ({len(found)} cells differ in this way or another)" if len(found) > 1 else ""
    raise RunDirError(
        f"cell {cell.cell} is finished, but ran with {key} = {toml_or_none(then)}, and would run with "
        f"{toml_or_none(now)} today: "
        f"a default has changed since{more}. Choose another --out, or delete {path} to run that cell again"
    )


def _settings_in(path: Path) -> dict[str, Any]:
    """The settings of a run; {} if they cannot be read."""
    try:
        tables = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        return flatten(tables) if isinstance(tables, dict) else {}
    except (OSError, ValueError, ConfigError):
        return {}
