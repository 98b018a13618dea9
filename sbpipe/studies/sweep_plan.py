"""`sbpipe sweep`: makes a plan from a SWEEP.toml and flags. Starts nothing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sbpipe.errors import ConfigError
from sbpipe.runs.study.study import short
from sbpipe.runs.study.targets import FACTORS
from sbpipe.studies.cells import lay_out, varied_keys
from sbpipe.studies.plan import SWEEP, Plan, PlannedArm
from sbpipe.studies.study_file import arms_in, base_in, grid_in, seeds_in, tables_in, targets_in

KNOWN = ("name", "seeds", "targets", "base", "grid", "arms")
SYNC_KEY = "sync.interval"
SYNC_MODES = ("pipelined", "fixed-lag")


def mode_arms(modes: Sequence[str], *, is_sync: bool) -> list[PlannedArm]:
    """One arm per mode.

    A sweep of the sync interval has two default modes, which show the effect and its cause. `pipelined` is
    what a user gets: arrival decides how stale a score is. `fixed-lag` with a lag of one step is the ideal
    pipeline on a logical clock: batch b is scored with the last version published by step b - 1, so on any
    machine staleness takes exactly the values 1, 2, ..., interval.
    """
    lag = {"sync.lag": 1}
    return [
        PlannedArm(mode, {"mode": mode, **(lag if is_sync and mode == "fixed-lag" else {})}) for mode in modes
    ]


def plan_sweep(
    path: Path | None,
    *,
    settings: Mapping[str, Any],
    grid: Mapping[str, list[Any]],
    modes: Sequence[str] | None,
    seeds: list[int] | None,
) -> Plan:
    """The plan of a file, or of flags alone; flags override the file."""
    tables = tables_in(path, KNOWN) if path is not None else {}
    base = base_in(tables, path.parent if path is not None else Path()) | dict(settings)
    swept = grid_in(tables.get("grid", {})) | dict(grid)
    arms = arms_in(tables.get("arms", []))
    # Only for the flag: a file names its modes itself.
    if modes is None and not arms and SYNC_KEY in grid and "mode" not in swept:
        modes = SYNC_MODES
    if modes:
        arms = mode_arms(modes, is_sync=SYNC_KEY in swept and "sync.lag" not in swept)
    if not swept and not arms:
        way_out = "Give a SWEEP.toml with a [grid], --sync 1,2,4, or --grid KEY=V1,V2,..."
        raise ConfigError("grid", {}, "is empty: nothing is swept", way_out)
    for arm in arms:
        if arm.tasks:
            raise ConfigError(
                f"arm {arm.name!r} tasks",
                arm.tasks,
                "a sweep has no tasks",
                "Leave it out, or use `sbpipe compare`",
            )
    all_seeds = seeds if seeds is not None else seeds_in(tables.get("seeds", 1))
    cells = lay_out(base, arms, swept, all_seeds)
    return Plan(
        kind=SWEEP,
        name=_name(tables, path, swept),
        swept=list(swept),
        seeds=all_seeds,
        cells=cells,
        targets=targets_in(tables.get("targets", list(FACTORS))),
        strategies={arm.name: arm.strategy for arm in arms},
        varied=varied_keys(arms),
    )


def _name(tables: Mapping[str, Any], path: Path | None, swept: Mapping[str, Any]) -> str:
    fallback = path.stem if path is not None else "-".join(short(key) for key in swept) or "modes"
    name = tables.get("name", fallback)
    if not isinstance(name, str) or not name:
        raise ConfigError("name", name, "is not a name", 'Write name = "..."')
    return name
