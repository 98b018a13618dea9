"""`sbpipe top`: running and finished runs in the terminal."""

import argparse
import contextlib
import sys
import time
from pathlib import Path

HELP = "running and finished runs in this terminal, live"
DESCRIPTION = """\
Follows runs in this terminal: how far they are, what they reach, how stale the
selections are and who waits for whom. It only reads the runs' files; `sbpipe watch`
shows the same in a browser, with curves. Ctrl-C ends it.

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
    """Show until Ctrl-C."""
    from sbpipe.show.live import finder
    from sbpipe.show.live.top import lines_now
    from sbpipe.show.live.watcher import Watcher
    from sbpipe.show.terminal import Display, cut

    finder.check(args.paths)
    watcher = Watcher(args.paths)
    # A long backlog comes in pieces, and the first screen must show all of it.
    while watcher.look():
        pass
    if args.once or not sys.stdout.isatty():
        # `cut` also removes control characters: names from files must not send escape codes to a terminal.
        print("\n".join(cut(line, 10_000) for line in lines_now(watcher)))
        return 0
    display = Display()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            display.lines(lines_now(watcher))
            if not watcher.look():
                time.sleep(EVERY_S)
    return 0
