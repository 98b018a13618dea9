"""One file per command, with its arguments and its work. Nothing heavy is imported before a command runs."""

import argparse
from types import ModuleType

from sbpipe.commands import (
    bench,
    compare,
    doctor,
    export,
    keys,
    plan,
    report,
    reproduce,
    run,
    score,
    selector,
    sweep,
    top,
    track,
    trainer,
    watch,
    worth,
)

# In the order in which `--help` lists them.
COMMANDS: dict[str, ModuleType] = {
    "run": run,
    "plan": plan,
    "trainer": trainer,
    "selector": selector,
    "score": score,
    "sweep": sweep,
    "compare": compare,
    "worth": worth,
    "reproduce": reproduce,
    "export": export,
    "report": report,
    "watch": watch,
    "top": top,
    "track": track,
    "doctor": doctor,
    "bench": bench,
    "keys": keys,
}


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Every command, with its help and arguments."""
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=getattr(module, "DESCRIPTION", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
