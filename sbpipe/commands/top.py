"""`sbpipe top`: running and finished runs in the terminal."""

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpipe.show.live.glance import Glance

HELP = "running and finished runs in this terminal, live"
DESCRIPTION = """\
Follows runs in this terminal: how far they are, what they reach, how stale the
selections are and who waits for whom. It only reads the runs' files. q ends it.

Without a terminal, or with --once, it prints what is there and ends.
"""
EVERY_S = 0.7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        default=[Path("runs")],
        metavar="PATH",
        help="a run directory or a folder of runs (runs/)",
    )
    parser.add_argument("--once", action="store_true", help="print once and end")


def run(args: argparse.Namespace) -> int:
    """Show until `q`."""
    from sbpipe.show.live import finding
    from sbpipe.show.live.glance import Glance

    finding.check(args.paths)
    glance = Glance(args.paths)
    if args.once or not sys.stdout.isatty():
        return _print(glance)
    return _follow(glance)


def _print(glance: "Glance") -> int:
    while not glance.read():
        pass
    print("\n".join(glance.lines(shutil.get_terminal_size((120, 40)).columns, height=10_000)))
    return 0


def _follow(glance: "Glance") -> int:
    from sbpipe.show.live.terminal import Screen
    from sbpipe.show.live.top import painted

    with Screen() as screen:
        while True:
            is_whole = glance.read()
            lines = glance.lines(*screen.size)
            screen.draw(lines if os.environ.get("NO_COLOR") else [painted(line) for line in lines])
            word = screen.wait(EVERY_S if is_whole else 0.01)
            if word in ("quit", "terminated"):
                return 0 if word == "quit" else 130
