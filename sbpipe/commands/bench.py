"""`sbpipe bench`: what the docs claim, measured here."""

import argparse
from pathlib import Path

from sbpipe.bench import BENCHES, faults_bench, growth_bench, main, scoring_bench
from sbpipe.commands.settings import add_assignments
from sbpipe.config import parse_assignment
from sbpipe.errors import ConfigError

HELP = "measure what the docs claim, side by side on this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument(
        "what",
        nargs="*",
        metavar="WHAT",
        help=f"{', '.join(BENCHES)} (all), or faults",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    of_faults = parser.add_argument_group("faults alone (a real training under each, one row for each)")
    of_faults.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="faults whose names hold one of these words"
    )
    of_faults.add_argument("--quick", action="store_true", help="a few of them, a minute in all")
    of_scoring = parser.add_argument_group(
        "scoring alone, of your own model and data (a table of precisions and batch sizes)"
    )
    add_assignments(of_scoring, "model.name, data.name, ...: trained a while first")
    of_scoring.add_argument(
        "--run", type=Path, metavar="DIR", help="the model, data and last weights of a run"
    )
    of_scoring.add_argument(
        "--no-compile", action="store_true", help="leave the compiled model out, which takes a minute to make"
    )

    of_growth = parser.add_argument_group("growth alone")
    of_growth.add_argument("--steps", type=int, metavar="N", help="length of the made-up run (20000)")


def run(args: argparse.Namespace) -> int:
    """Measure and say."""
    if args.what == ["scoring"]:
        given = dict(parse_assignment(text) for text in args.assignments)
        return scoring_bench(given, args.run, as_json=args.json, compiled=not args.no_compile)
    if args.what == ["growth"] and args.steps:
        return growth_bench(args.steps, as_json=args.json)
    if args.steps:
        raise ConfigError(
            "--steps", str(args.steps), "belongs to the bench of growth", "Write sbpipe bench growth"
        )
    if args.what == ["faults"]:
        return faults_bench(args.only, is_quick=args.quick, as_json=args.json)
    for name, value in (("--only", args.only), ("--quick", args.quick)):
        if value:
            raise ConfigError(name, str(value), "belongs to the bench of faults", "Write sbpipe bench faults")
    for name, value in (("--set", args.assignments), ("--run", args.run), ("--no-compile", args.no_compile)):
        if value:
            raise ConfigError(
                name, str(value), "belongs to the bench of scoring", "Write sbpipe bench scoring"
            )
    return main(args.what, as_json=args.json)
