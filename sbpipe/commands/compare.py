"""`sbpipe compare`: arms by tasks by seeds under one budget, every device billed."""

import argparse
import sys
from pathlib import Path

from sbpipe.commands.study import add_study_arguments, conduct_study
from sbpipe.config import parse_assignment

HELP = "training strategies side by side: time to target, device-seconds, paired by seed"
DESCRIPTION = """\
Runs every arm with every seed, seed by seed on the same cores, and leaves
results.csv, the tables (results.md) and a report. Target errors are factors of
the baseline's mean final error. Time includes start-up and leaves out
measuring; device-seconds bill every device held. Losing arms are shown too.
Where the file has [[tasks]], every arm runs for every task, and each task is
compared by itself.

  sbpipe compare configs/compare/smoke.toml             about a minute
  sbpipe compare configs/compare/honest.toml --seeds 3
  sbpipe compare configs/compare/delay.toml --jobs 2    two cells side by side
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument(
        "file",
        type=Path,
        metavar="ARMS.toml",
        help="name, seeds, baseline, targets, [price], [base], [[tasks]], [[arms]]",
    )
    add_study_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Plan, run the remaining cells, and print the results."""
    from sbpipe.studies.comparison_plan import plan_comparison
    from sbpipe.studies.study_file import seeds_flag

    plan = plan_comparison(
        args.file,
        settings=dict(parse_assignment(text) for text in args.assignments),
        seeds=seeds_flag(args.seeds) if args.seeds is not None else None,
    )
    return conduct_study(plan, args, sys.argv)
