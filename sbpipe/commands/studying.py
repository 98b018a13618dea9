"""What `sweep` and `compare` share: their arguments, and the way from a plan to the last word. Knows neither
grid nor arms.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpipe.config import parse_assignment, resolve

if TYPE_CHECKING:
    from sbpipe.studies.conduct import Analyse
    from sbpipe.studies.plan import Plan
    from sbpipe.studies.tables import Table


def add_study_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of both commands."""
    parser.add_argument("--seeds", metavar="N", help="how many seeds, or which ones: 3 or 0,1,2")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="assignments",
        help="a setting of all cells; may be repeated",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where to write, or to go on (a new folder under runs/)"
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
    parser.add_argument("--no-report", action="store_true", help="leave out the report at the end")


def conduct_study(
    plan: "Plan",
    args: argparse.Namespace,
    argv: Sequence[str],
    *,
    analyse: "Analyse",
    tabulate: "Callable[[Plan, dict[str, Any]], list[Table]]",
) -> int:
    """Run what is left of a plan, then tables, report and where they are."""
    from sbpipe.show.terminal import Display
    from sbpipe.studies.beside import refuse_jobs, refuse_other_threads
    from sbpipe.studies.conduct import Conductor
    from sbpipe.studies.ending import end
    from sbpipe.studies.folder import Folder, default_out
    from sbpipe.studies.plan import refuse_overruled, warnings_in

    num_cores = len(os.sched_getaffinity(0))
    refuse_jobs(args.jobs, num_cores)
    refuse_overruled(plan.cells, dict(parse_assignment(text) for text in args.assignments))
    refuse_other_threads(((cell.label, resolve(cell.settings)) for cell in plan.cells), args.jobs, num_cores)
    for warning in warnings_in(plan.cells):
        print(f"warning: {warning}", file=sys.stderr)
    if args.dry_run:
        print("\n".join(cell.label for cell in plan.cells))
        return 0
    path = args.out or default_out(plan.kind, plan.name)
    folder = Folder(path, plan)
    try:
        seeds, pace = ", ".join(map(str, plan.seeds)), f", {args.jobs} at a time" if args.jobs > 1 else ""
        print(
            f"{plan.kind} {plan.name}: {len(plan.cells)} runs{pace}, seeds {seeds}, into {path}", flush=True
        )
        outcome = Conductor(plan, folder, analyse, Display(), retry=args.retry, jobs=args.jobs).run()
        again = [part for part in argv[1:] if part != "--retry"]
        resume_with = shlex.join(["sbpipe", *again, *([] if args.out else ["--out", str(path)])])
        ending = end(
            plan,
            path,
            outcome,
            tabulate(plan, outcome.analysis),
            resume_with=resume_with,
            with_report=not args.no_report,
        )
    finally:
        folder.close()
    print(ending.text)
    return ending.code
