"""`sbpipe sweep`: a grid of settings by seeds, one run after another."""

import argparse
import sys
from pathlib import Path

from sbpipe.commands.study import add_study_arguments, conduct_study
from sbpipe.config import parse_assignment, read_toml
from sbpipe.errors import ConfigError

HELP = "a grid over any settings, by seeds, resumable; one results.csv and a report"
DESCRIPTION = """\
Runs every point of a grid with every seed, one after another, and leaves one
results.csv, the tables and a report. Every cell is checked before the first
one starts. Give the same command with the same --out to resume after a stop.

  sbpipe sweep --sync 1,2,4,8,16,32,64 --seeds 3
  sbpipe sweep --grid selection.keep=0.25,0.33,0.5 --set train.epochs=3
  sbpipe sweep configs/sweep/staleness.toml --out runs/staleness
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument(
        "file", nargs="?", type=Path, metavar="SWEEP.toml", help="name, seeds, [base], [grid] and [[arms]]"
    )
    parser.add_argument(
        "--sync", metavar="N,N,...", help="sync intervals to sweep, each in both modes (see --modes)"
    )
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="KEY=V1,V2,...",
        help="any setting to sweep; may be repeated",
    )
    parser.add_argument(
        "--modes", metavar="NAMES", help="one arm per mode (with --sync: pipelined,fixed-lag)"
    )
    parser.add_argument("--config", type=Path, metavar="CONFIG.toml", help="settings that all cells share")
    add_study_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Plan, run the remaining cells, and print the results."""
    from sbpipe.studies.study_file import grid_flag, seeds_flag
    from sbpipe.studies.sweep_plan import SYNC_KEY, plan_sweep

    grid = dict(grid_flag(text) for text in args.grid)
    if args.sync is not None:
        if SYNC_KEY in grid:
            raise ConfigError("--sync", args.sync, f"--grid {SYNC_KEY} is given too", "Give one of them")
        # Parsed like --grid, so that both flags take the same lists.
        grid[SYNC_KEY] = grid_flag(f"{SYNC_KEY}={args.sync}")[1]
    settings = read_toml(args.config) if args.config is not None else {}
    plan = plan_sweep(
        args.file,
        settings=settings | dict(parse_assignment(text) for text in args.assignments),
        grid=grid,
        modes=[mode.strip() for mode in args.modes.split(",")] if args.modes else None,
        seeds=seeds_flag(args.seeds) if args.seeds is not None else None,
    )
    return conduct_study(plan, args, sys.argv)
