"""Which runs a study consists of: arms times a grid times seeds, each checked before anything starts. Pure; knows no file."""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sbpipe.config import Config, resolve, toml_value, warnings_of
from sbpipe.errors import ConfigError, UserError

TARGETS = (1.1, 1.2, 1.4)
"""Target errors as factors of a reference error, as in the paper's Table 1."""

_LONGEST_NAME = 120


@dataclass(frozen=True)
class Arm:
    """One alternative: its name, what it sets, and the strategy it counts for in the Pareto share."""

    name: str
    settings: dict[str, Any]
    strategy: str = ""


@dataclass(frozen=True)
class PlannedCell:
    """One run to be made."""

    cell: str
    """Its folder's name."""
    arm: str
    seed: int
    swept: dict[str, Any]
    """The grid's keys and this cell's values."""
    settings: dict[str, Any]
    """Every setting that was given."""

    @property
    def label(self) -> str:
        """What a person calls it."""
        return " ".join([self.arm, *(f"{short(key)} {spoken(value)}" for key, value in self.swept.items()), f"seed {self.seed}"])

    @property
    def point(self) -> str:
        """What cells that differ by nothing but the seed have in common."""
        return json.dumps([self.arm, self.swept], sort_keys=True)


@dataclass(frozen=True)
class Plan:
    """All runs of a study, in the order they are made."""

    kind: str
    name: str
    swept: list[str]
    seeds: list[int]
    cells: list[PlannedCell]
    baseline: str | None = None
    targets: list[float] = field(default_factory=lambda: list(TARGETS))
    price: dict[str, float] | None = None
    strategies: dict[str, str] = field(default_factory=dict)
    """Each arm's strategy."""
    varied: list[str] = field(default_factory=list)
    """Keys that arms set: columns of the results beside the swept ones."""

    def as_json(self) -> dict[str, Any]:
        """The plan as `plan.json` holds it."""
        tables: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return tables

    @property
    def arms(self) -> list[str]:
        """The arms, in order."""
        return list(dict.fromkeys(cell.arm for cell in self.cells))


def short(key: str) -> str:
    """The last part of a dotted key."""
    return key.rpartition(".")[2]


def spoken(value: Any) -> str:
    """A value as a person says it: text without quotes, anything else as TOML."""
    return value if isinstance(value, str) else toml_value(value)


def lay_out(
    base: Mapping[str, Any], arms: Sequence[Arm], grid: Mapping[str, Sequence[Any]], seeds: Sequence[int]
) -> list[PlannedCell]:
    """Every arm at every point of the grid with every seed, checked; seed by seed, so that a drift of the machine hits all alike.

    Without arms a cell is labelled by its mode. A cell whose settings cannot be resolved is named and nothing else happens.
    """
    _refuse_conflicts(base, arms, grid)
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    cells: list[PlannedCell] = []
    names: set[str] = set()
    for seed, point, arm in itertools.product(seeds, points, arms or [Arm("", {})]):
        settings = {**base, **arm.settings, **point, "seed": seed}
        draft = PlannedCell("", arm.name, seed, point, settings)
        config = _checked(draft)
        label = arm.name or config.mode
        name = _unused(_folder_name(label, point, seed), names)
        cells.append(PlannedCell(name, label, seed, point, settings))
    return cells


def warnings_in(cells: Iterable[PlannedCell]) -> list[str]:
    """Settings without effect, each said once with the first cell it concerns."""
    found: dict[str, str] = {}
    for cell in cells:
        for text in warnings_of(resolve(cell.settings)):
            found.setdefault(text, cell.label)
    return [f"{label}: {text}" for text, label in found.items()]


def differences(there: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How two plans differ, in a few words each, changed settings first; [] if they are the same."""
    if there.get("kind") != now["kind"]:
        return [f"it is a {there.get('kind')}, not a {now['kind']}"]
    before = {cell["cell"]: cell for cell in there.get("cells", [])}
    after = {cell["cell"]: cell for cell in now["cells"]}
    found: dict[str, None] = {}
    for name in sorted(after.keys() & before.keys()):
        old, new = before[name]["settings"], after[name]["settings"]
        for key in sorted(key for key in {*old, *new} if old.get(key) != new.get(key)):
            found[f"{key} is {toml_or_none(old.get(key))} there and {toml_or_none(new.get(key))} here"] = None
    keys = [key for key in now if key != "cells" and there.get(key) != now[key]]
    found |= {f"{key} is {toml_or_none(there.get(key))} there and {toml_or_none(now[key])} here": None for key in keys}
    found |= {f"cell {name} is only there": None for name in before if name not in after}
    found |= {f"cell {name} is only here": None for name in after if name not in before}
    return list(found) or (["the order of the cells"] if there != now else [])


def refuse_overruled(cells: Iterable[PlannedCell], flags: Mapping[str, Any]) -> None:
    """A setting given for all cells must reach all of them: what the file says of an arm or the grid is not silently kept."""
    for cell in cells:
        for key, value in flags.items():
            if cell.settings[key] != value:
                reason = f"the grid or an arm sets it to {toml_or_none(cell.settings[key])} for {cell.label!r}"
                raise ConfigError(f"--set {key}", value, reason, "Change it there, or leave this one out")


_MAY_GROW = ("seeds", "cells", "strategies", "varied")


def has_grown(there: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a plan is an earlier one with cells added: more seeds, values or arms, and every earlier cell as it was."""
    after = {cell["cell"]: cell for cell in now["cells"]}
    is_same = all(there.get(key) == now[key] for key in now if key not in _MAY_GROW)
    return is_same and all(after.get(cell["cell"]) == cell for cell in there.get("cells", []))


def toml_or_none(value: Any) -> str:
    """A value as people write it."""
    return "not given" if value is None else toml_value(value)


def _refuse_conflicts(base: Mapping[str, Any], arms: Sequence[Arm], grid: Mapping[str, Sequence[Any]]) -> None:
    for where, keys in [("base", base), ("grid", grid), *((f"arm {arm.name!r}", arm.settings) for arm in arms)]:
        if "seed" in keys:
            raise ConfigError("seed", keys["seed"], f"is set in the {where}, but a study has seeds", "Use seeds = [...] or --seeds")
    for arm in arms:
        both = [key for key in arm.settings if key in grid]
        if both:
            value = arm.settings[both[0]]
            raise ConfigError(
                both[0], value, f"is set by arm {arm.name!r} and swept by the grid too", "Leave it out of one of them"
            )


def _checked(cell: PlannedCell) -> Config:
    try:
        return resolve(cell.settings)
    except ConfigError as error:
        raise UserError(f"cell {cell.label.strip()!r}: {error}. Nothing was started") from None


def _folder_name(arm: str, point: Mapping[str, Any], seed: int) -> str:
    parts = [arm, *(f"{short(key)}-{spoken(value)}" for key, value in point.items())]
    plain = "_".join(re.sub(r"[^A-Za-z0-9._=-]+", "-", part).strip("-.") for part in parts)
    return f"{plain[:_LONGEST_NAME]}_seed-{seed}"


def _unused(name: str, names: set[str]) -> str:
    """The name, numbered if an earlier cell has it."""
    free = next(free for k in itertools.count(1) if (free := name if k == 1 else f"{name}_{k}") not in names)
    names.add(free)
    return free
