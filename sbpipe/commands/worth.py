"""`sbpipe worth`: how many updates of random selection one update of a policy is worth, for a job."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sbpipe.commands.study import add_study_arguments, conduct_study
from sbpipe.config import parse_assignment

if TYPE_CHECKING:
    from sbpipe.config import Config

HELP = "what selection is worth for your job: updates that random selection needs for the same error"
DESCRIPTION = """\
Worth k of a policy at N updates: the updates that random selection needs, its
learning rate decayed inside its own budget, to end at the same error, over N.
Runs random selection at several multiples of N (shared by all policies) and
each policy at N, with several seeds, and leaves k with an interval, the tables,
a picture and a report. N is train.steps, or what train.epochs comes to.
Give the same command with the same --out to resume, or to add seeds and arms.

  sbpipe worth configs/demo.toml
  sbpipe worth job.toml --policies steady,sb --seeds 5 --jobs 2 --set mode=fixed-lag
  sbpipe worth job.toml --arm steady --arm steady@mode=fixed-lag,sync.lag=1,sync.interval=8
  sbpipe worth job.toml --set data.validation=0.1        while tuning: the test set stays unseen
  sbpipe worth job.toml --commands                       the command of every run, to run one by hand

A file may also hold seeds, budgets, [base], [[tasks]] and [[arms]], as those
of `sbpipe compare` do.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="CONFIG.toml",
        help="settings of a run, or a study: name, seeds, budgets, [base], [[tasks]], [[arms]]",
    )
    parser.add_argument(
        "--policies", metavar="NAME,NAME,...", help="policies to measure (that of the settings)"
    )
    parser.add_argument(
        "--arm",
        action="append",
        default=[],
        metavar="POLICY@KEY=VALUE,...",
        help="a policy with settings of its own; may be repeated",
    )
    parser.add_argument(
        "--budgets",
        metavar="X,X,...",
        help="random selection's budgets as multiples of N (0.5,0.67,1,1.5,2,3,4)",
    )
    add_study_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Plan, run the remaining cells, and print what selection is worth."""
    from sbpipe.studies.study_file import seeds_flag
    from sbpipe.studies.worth_plan import budgets_flag, plan_worth

    policies = [name.strip() for name in args.policies.split(",") if name.strip()] if args.policies else []
    plan = plan_worth(
        args.file,
        settings=dict(parse_assignment(text) for text in args.assignments),
        arms=[*policies, *args.arm],
        budgets=budgets_flag(args.budgets) if args.budgets is not None else None,
        seeds=seeds_flag(args.seeds) if args.seeds is not None else None,
        count_examples=_count_examples,
    )
    return conduct_study(plan, args, sys.argv)


def _count_examples(config: "Config") -> int:
    from sbpipe.data.split import count_examples

    return count_examples(config.data)
