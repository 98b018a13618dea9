"""`sbpipe bench`: the README's claims, measured here."""

import argparse

HELP = "measure what the README claims, side by side on this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("what", nargs="*", metavar="WHAT", help="selection, views, link, publish, startup, pipeline, seeing (all)")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Measure and say."""
    from sbpipe import bench

    return bench.main(args.what, as_json=args.json)
