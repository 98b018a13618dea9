"""`sbpipe keys`: CURVE keys for roles on different hosts."""

import argparse
from pathlib import Path

HELP = "make CURVE keys for roles on different hosts"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="a new folder for trainer.key and selector.key"
    )


def run(args: argparse.Namespace) -> int:
    """Make them and say where each goes."""
    from sbpipe.link.keys import make_keys

    trainer, selector = make_keys(args.folder)
    print(
        f"{trainer}   stays with the trainer:   sbpipe trainer --keys {args.folder} --bind tcp://0.0.0.0:5570"
    )
    print(
        f"{selector}  goes to the selectors:    sbpipe selector --keys {args.folder} --connect "
        "tcp://HOST:5570"
    )
    return 0
