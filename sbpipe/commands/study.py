"""Shared by `sweep`, `compare` and `worth`: their arguments, and running a plan to its end."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sbpipe.commands.settings import add_assignments
from sbpipe.config import parse_assignment, resolve
from sbpipe.process import assignments

if TYPE_CHECKING:
    from sbpipe.studies.plan import Plan, PlannedCell


def add_study_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of these commands."""
    parser.add_argument("--seeds", metavar="N", help="how many seeds, or which ones: 3 or 0,1,2")
    add_assignments(parser, "a setting of all cells; may be repeated")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where to write, or to resume (a new folder under runs/)"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="cells at a time, each on its share of the cores (1); pipelined and data-parallel ones run "
        "alone",
    )
    parser.add_argument("--retry", action="store_true", help="run cells again that failed")
    parser.add_argument("--dry-run", action="store_true", help="check and list the cells, run none")
    parser.add_argument("--commands", action="store_true", help="print the command of each cell, run none")
    parser.add_argument("--no-report", action="store_true", help="leave out the report at the end")


def conduct_study(plan: "Plan", args: argparse.Namespace, argv: Sequence[str]) -> int:
    """Run the remaining cells of a plan, make tables and report, and print where they are."""
    from sbpipe.show.terminal import Display
    from sbpipe.studies.conclusion import conclude
    from sbpipe.studies.conductor import Conductor
    from sbpipe.studies.folder import StudyFolder, default_out

    _check(plan, args)
    if args.dry_run:
        print("\n".join(cell.label for cell in plan.cells))
        return 0
    if args.commands:
        print("\n".join(command_of(cell) for cell in plan.cells))
        return 0
    path = args.out or default_out(plan.kind, plan.name)
    folder = StudyFolder(path, plan)
    try:
        seeds, pace = ", ".join(map(str, plan.seeds)), f", {args.jobs} at a time" if args.jobs > 1 else ""
        print(
            f"{plan.kind} {plan.name}: {len(plan.cells)} runs{pace}, seeds {seeds}, into {path}", flush=True
        )
        outcome = Conductor(plan, folder, Display(), retry=args.retry, jobs=args.jobs).run()
        # The conclusion adds --retry itself if cells have failed.
        again = [part for part in argv[1:] if part != "--retry"]
        resume_with = shlex.join(["sbpipe", *again, *([] if args.out else ["--out", str(path)])])
        conclusion = conclude(outcome, path, resume_with=resume_with, with_report=not args.no_report)
    finally:
        # Closed after the report: while it is made, no other process may change the folder.
        folder.close()
    print(conclusion.text)
    return conclusion.code


def command_of(cell: "PlannedCell") -> str:
    """The command that runs a cell by itself."""
    return shlex.join(["sbpipe", "run", *assignments(cell.settings)])


def _check(plan: "Plan", args: argparse.Namespace) -> None:
    """Before anything starts, refuse plans that cannot run, and warn of settings without effect."""
    from sbpipe.studies.cells import refuse_overruled, warnings_in
    from sbpipe.studies.core_shares import refuse_jobs, refuse_other_threads

    num_cores = len(os.sched_getaffinity(0))
    refuse_jobs(args.jobs, num_cores)
    # The cells of random selection in a study of worth keep their mode and policy, whatever the flags say.
    own_cells = [cell for cell in plan.cells if cell.arm not in plan.budgets]
    refuse_overruled(own_cells, dict(parse_assignment(text) for text in args.assignments))
    refuse_other_threads(((cell.label, resolve(cell.settings)) for cell in plan.cells), args.jobs, num_cores)
    for warning in warnings_in(own_cells):
        print(f"warning: {warning}", file=sys.stderr)
