"""`sbpipe doctor`: what this machine has."""

import argparse

HELP = "what this machine has, and what `run` would choose"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Survey the machine and print."""
    from sbpipe.machine import doctor

    return doctor.main(as_json=args.json)
