"""`sbpipe bench`: measures the docs' claims on this machine."""

import argparse
from pathlib import Path

from sbpipe.bench import (
    BENCHES,
    accelerator_bench,
    faults_bench,
    growth_bench,
    lockstep_bench,
    main,
    scoring_bench,
    soak_bench,
    stranger_bench,
)
from sbpipe.commands.settings import add_assignments
from sbpipe.config import parse_assignment
from sbpipe.errors import ConfigError

HELP = "measure what the docs claim, side by side on this machine"

OWNERS = {
    "only": ("faults", "accelerator"),
    "quick": ("faults", "accelerator"),
    "out": ("accelerator",),
    "minutes": ("soak", "stranger"),
    "every": ("soak",),
    "runs": ("lockstep",),
    "assignments": ("scoring",),
    "run": ("scoring",),
    "no_compile": ("scoring",),
    "steps": ("growth",),
}
"""Arguments that only some benches have, by their names in argparse."""
FLAGS = {"assignments": "--set"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument(
        "what",
        nargs="*",
        metavar="WHAT",
        help=f"{', '.join(BENCHES)} (all), or one of faults, soak, lockstep, stranger, accelerator, scale",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    of_faults = parser.add_argument_group(
        "faults (a real training under each, one row for each) and accelerator (what only hardware can tell, "
        "in a file to send to us)"
    )
    of_faults.add_argument(
        "--only", nargs="+", metavar="WORD", help="faults or checks whose names hold one of these words"
    )
    of_faults.add_argument(
        "--quick", action="store_true", help="a few faults, or all checks of a small model: a minute in all"
    )
    of_faults.add_argument(
        "--out", type=Path, metavar="FILE", help="accelerator: the file (sbpipe-accelerator.json)"
    )
    of_soak = parser.add_argument_group(
        "soak (one long training, its processes killed at random) and stranger (another user of this host "
        "tries a run; needs root)"
    )
    of_soak.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help="how long it is disturbed (30); how long a stranger tries (10), and as long again the control",
    )
    of_soak.add_argument(
        "--every", type=float, metavar="S", help="soak: seconds from one fault to the next (20)"
    )
    of_lockstep = parser.add_argument_group("lockstep alone (runs with one process killed at a random step)")
    of_lockstep.add_argument("--runs", type=int, metavar="N", help="how many (20)")
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
    """Measure and print."""
    _refuse_strays(args)
    if args.what == ["scoring"]:
        given = dict(parse_assignment(text) for text in args.assignments)
        return scoring_bench(given, args.run, as_json=args.json, compiled=not args.no_compile)
    if args.what == ["growth"] and args.steps:
        return growth_bench(args.steps, as_json=args.json)
    if args.what == ["faults"]:
        return faults_bench(args.only or [], is_quick=args.quick, as_json=args.json)
    if args.what == ["accelerator"]:
        return accelerator_bench(args.only or [], args.out, is_quick=args.quick, as_json=args.json)
    if args.what == ["soak"]:
        return soak_bench(args.minutes or 30.0, args.every or 20.0, as_json=args.json)
    if args.what == ["stranger"]:
        return stranger_bench(args.minutes or 10.0, as_json=args.json)
    if args.what == ["lockstep"]:
        return lockstep_bench(args.runs or 20, as_json=args.json)
    return main(args.what, as_json=args.json)


def _refuse_strays(args: argparse.Namespace) -> None:
    """Refuse arguments of a bench that was not asked for."""
    for name, owners in OWNERS.items():
        value = getattr(args, name)
        if value and args.what not in [[owner] for owner in owners]:
            flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
            reason = f"belongs to the bench of {' and of '.join(owners)}"
            raise ConfigError(flag, str(value), reason, f"Write sbpipe bench {owners[0]}")
        if name in ("minutes", "every", "runs", "steps") and value is not None and not value > 0:
            raise ConfigError(f"--{name}", value, "must be above 0", "Leave it out for the default")
