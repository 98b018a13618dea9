"""Whether a finished cell ran with what the plan means today. Reads what its run left; changes nothing.

A plan holds the settings that were given; the rest are defaults, and a default may change from one version to
the next. The settings that a run resolved stand in its own config.json. Cells that differ in one of those
would be two kinds of run in one mean.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sbpipe.config import Config, flatten, is_local, resolve, to_json
from sbpipe.errors import ConfigError, RunDirError
from sbpipe.runs.directory import CONFIG
from sbpipe.studies.plan import PlannedCell, toml_or_none


def changed_keys(ran_with: Mapping[str, Any], now: Config) -> dict[str, tuple[Any, Any]]:
    """The settings that a run had otherwise than `now`, as (then, now).

    A key that only one side knows does not compare, and keys that a place may choose for itself make no other
    run.
    """
    today = flatten(json.loads(to_json(now)))
    shared = [key for key in ran_with if key in today and not is_local(key)]
    return {key: (ran_with[key], today[key]) for key in shared if ran_with[key] != today[key]}


def refuse_changed(cells: Sequence[tuple[PlannedCell, Path]]) -> None:
    """Finished cells and their run directories; one that ran with other settings is not mixed with those to
    come.
    """
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
    """The settings a run left; {} if they cannot be read."""
    try:
        tables = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        return flatten(tables) if isinstance(tables, dict) else {}
    except (OSError, ValueError, ConfigError):
        return {}
