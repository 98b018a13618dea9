"""Reads a study's TOML file and flags, part by part. Checks their shape, not the settings."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sbpipe.config import flatten, parse_assignment, read_tables, read_toml
from sbpipe.errors import ConfigError
from sbpipe.runs.study.targets import FACTORS
from sbpipe.studies.plan import INVERSE_KEEP, PlannedArm

_ARM_WORDS = ("name", "strategy", "settings", "tasks", "steps_factor")


def tables_in(path: Path, known: Sequence[str]) -> dict[str, Any]:
    """The top-level tables of a study's file; unknown ones are refused."""
    tables = read_tables(path, "file", "configs/sweep and configs/compare")
    for key in tables:
        if key not in known:
            # Only the file of a comparison has this key.
            if key == "baseline":
                raise ConfigError(
                    key, tables[key], f"{path} is a comparison, not a sweep", f"Use: sbpipe compare {path}"
                )
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
            way_out = f"It may hold {', '.join(known)}; settings of the runs belong under [base]"
            raise ConfigError(
                key, tables[key], f"unknown key in {path}, the nearest known one is {near}", way_out
            )
    return tables


def settings_in(table: Any, where: str) -> dict[str, Any]:
    """A table of settings as dotted keys, however they were written: "a.b" = 1, a.b = 1, or [a] b = 1."""
    if not isinstance(table, Mapping):
        raise ConfigError(where, table, "is not a table of settings", f"Write [{where}] and keys below it")
    # TOML reads a quoted "a.b" as one key, and a bare a.b as a table in a table.
    dotted = {key: value for key, value in table.items() if "." in key}
    return dotted | flatten({key: value for key, value in table.items() if "." not in key})


def base_in(tables: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The settings that all cells share: the file that `config` names, beside the study's, then [base]."""
    given = settings_in(tables.get("base", {}), "base")
    named = given.pop("config", None)
    if named is None:
        return given
    if not isinstance(named, str):
        raise ConfigError("base.config", named, "is not a path", 'Write config = "path.toml"')
    return read_toml(folder / named) | given


def grid_in(table: Any, where: str = "grid") -> dict[str, list[Any]]:
    """The swept keys and their values."""
    grid = settings_in(table, where)
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            reason = "has no values" if values == [] else "is not a list of values"
            raise ConfigError(f"{where} {key}", values, reason, f'Write "{key}" = [first, second, ...]')
        if any(value in values[:k] for k, value in enumerate(values)):
            raise ConfigError(f"{where} {key}", values, "holds a value twice", "Name each value once")
    return grid


def grid_flag(text: str) -> tuple[str, list[Any]]:
    """`key=v1,v2,...` of the command line; each value is TOML or a bare string."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(
            "--grid", text, "is not KEY=V1,V2,...", "Write for instance --grid selection.keep=0.25,0.33,0.5"
        )
    try:
        parsed = tomllib.loads(f"values = [{values}]")["values"]
    except tomllib.TOMLDecodeError:
        # A value is a bare word, as in mode=inline,lockstep: parse each value by itself.
        parsed = [parse_assignment(f"v={value}")[1] for value in values.split(",")]
    key = key.strip()
    return key, grid_in({key: [value for value in parsed if value != ""]}, "--grid")[key]


def seeds_in(value: Any, where: str = "seeds") -> list[int]:
    """`seeds = 3` means 0, 1, 2; a list means itself."""
    way_out = "Write how many, for instance seeds = 3, or which ones, for instance seeds = [0, 1, 2]"
    is_count = isinstance(value, int) and not isinstance(value, bool)
    seeds = list(range(value)) if is_count else value
    if not isinstance(seeds, list) or not all(
        isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in seeds
    ):
        raise ConfigError(where, value, "is neither a number of seeds nor a list of them", way_out)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(where, value, "names a seed twice" if seeds else "leaves nothing to run", way_out)
    return seeds


def seeds_flag(text: str) -> list[int]:
    """`--seeds 3` or `--seeds 0,1,2`."""
    parts = text.strip().strip(",").split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise ConfigError(
            "--seeds",
            text,
            "is neither a number of seeds nor a list of them",
            "Write --seeds 3 or --seeds 0,1,2",
        )
    return seeds_in(int(parts[0]) if "," not in text else [int(part) for part in parts])


def arms_in(entries: Any) -> list[PlannedArm]:
    """The [[arms]]: a name each, its strategy, its tasks, and settings beside these or under `settings`."""
    return [_arm(entry) for entry in named_in(entries, "arm")]


def named_in(entries: Any, word: str) -> list[dict[str, Any]]:
    """The entries of [[arms]] or [[tasks]]; every one needs a unique name."""
    many = f"{word}s"
    way_out = f'Write [[{many}]], then name = "..." and settings below it'
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise ConfigError(many, entries, f"is not a list of {many}", way_out)
    names: list[str] = []
    for entry in entries:
        name = entry.get("name")
        if not isinstance(name, str) or not name.strip():
            reason = f"every {word} needs a name"
            raise ConfigError(f"{many} name", name, reason, f'Write name = "..." below its [[{many}]]')
        if name.strip() in names:
            raise ConfigError(many, name, f"is the name of two {many}", f"Give each {word} a name of its own")
        names.append(name.strip())
    return [{**entry, "name": name} for entry, name in zip(entries, names, strict=True)]


def settings_beside(entry: Mapping[str, Any], words: Sequence[str], where: str) -> dict[str, Any]:
    """The settings of an arm or a task: beside its own words, or under `settings`."""
    beside = settings_in({key: value for key, value in entry.items() if key not in words}, where)
    return beside | settings_in(entry.get("settings", {}), f"{where} settings")


def names_in(value: Any, where: str) -> list[str] | None:
    """A list of names; None if it is not given."""
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise ConfigError(
            where,
            value,
            "is not a list of names",
            f'Write {where.rpartition(" ")[2]} = ["...", "..."], or leave it out',
        )
    return [name.strip() for name in value]


def targets_in(value: Any) -> list[float]:
    """Target errors as factors of the reference error."""
    is_list = (
        isinstance(value, list)
        and value
        and all(isinstance(factor, int | float) and factor > 0 for factor in value)
    )
    if not is_list:
        raise ConfigError(
            "targets",
            value,
            "is not a list of factors above 0",
            f"Write for instance targets = {list(FACTORS)}",
        )
    return [float(factor) for factor in value]


def _arm(entry: Mapping[str, Any]) -> PlannedArm:
    where = f"arm {entry['name']!r}"
    strategy = entry.get("strategy", entry["name"])
    if not isinstance(strategy, str):
        raise ConfigError(f"{where} strategy", strategy, "is not a name", 'Write strategy = "..."')
    return PlannedArm(
        entry["name"],
        settings_beside(entry, _ARM_WORDS, where),
        strategy,
        names_in(entry.get("tasks"), f"{where} tasks"),
        _steps_factor(entry.get("steps_factor"), f"{where} steps_factor"),
    )


def _steps_factor(value: Any, where: str) -> float | str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    if value is None or value == INVERSE_KEEP or is_number:
        return float(value) if is_number else value
    raise ConfigError(
        where,
        value,
        "is not a factor",
        f'Write a number above 0, or "{INVERSE_KEEP}" to train what selection would skip too',
    )
