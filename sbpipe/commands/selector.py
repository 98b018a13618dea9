"""`sbpipe selector`: one selector."""

import argparse
import logging
import os
import time

from sbpipe import collector
from sbpipe.commands.settings import add_settings, resolve_or_print
from sbpipe.errors import ConfigError
from sbpipe.interrupts import STOPPED, leave_at_once
from sbpipe.machine import cores
from sbpipe.process import SUPERVISED
from sbpipe.process.instances import instances_of, run_instances
from sbpipe.show.terminal import Display, lone_selector_line

_LOWEST = 19
HELP = "a selector, or several of one host; takes all other settings from its trainer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    add_settings(parser)
    parser.add_argument("--device", metavar="NAME", help="the selector's device, e.g. cuda:1 (auto)")
    parser.add_argument(
        "--connect",
        metavar="WHERE",
        help="the trainer's run directory or address (the one trainer of this user on this host)",
    )
    parser.add_argument(
        "--keys",
        metavar="FILE",
        help="this selector's key, made by `sbpipe keys`; a run directory brings its own",
    )
    parser.add_argument(
        "--job",
        metavar="FILE",
        help="the job of a user's own loop (sbpipe.select): the file it left, or module:function",
    )
    parser.add_argument(
        "--instances",
        type=int,
        metavar="N",
        help="start N selectors, on the devices of --device in turn (cuda:0,cuda:1) or on shares of cores",
    )
    parser.add_argument(
        "--orphan-timeout", type=float, metavar="S", help="seconds to wait for a lost trainer (60)"
    )
    parser.add_argument(
        "--allow",
        type=lambda text: text.split(","),
        metavar="NAMES",
        help="code and files that the trainer may name: mine:model,mine:data,/data/set.npz (nothing; what "
        "this selector's own settings name needs no flag)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve a trainer until it says goodbye."""
    config, given = resolve_or_print(args)
    if config is None:
        return 0
    if args.instances is not None:
        return run_instances(
            instances_of(config, given, args.instances, *(["--job", args.job] if args.job else []))
        )
    if len(config.selector.devices) > 1:
        reason = "names several devices, and this is one selector"
        raise ConfigError(
            "--device", config.selector.device, reason, "Add --instances N: at least one for each"
        )
    # Before numpy and torch are imported: they size their thread pools by the cores they find.
    leave_at_once()
    cores.pin_role("selector", config.selector.device, config.selector.threads)
    if args.job and cores.computes_on_cpu(config.selector.device):
        # The user's own loop may compute on these cores too, and must not get slower.
        os.nice(_LOWEST)
    with collector.paused():
        from sbpipe.process import roles
        from sbpipe.records import RunEnd, SelectorStats
        from sbpipe.selector.job import read_job

    display, begin = Display(), time.monotonic()
    is_supervised = bool(os.environ.get(SUPERVISED))

    def show(stats: SelectorStats | None) -> None:
        display.lines([lone_selector_line(stats, time.monotonic() - begin)])

    end = roles.run_selector(
        config,
        given,
        None if is_supervised else show,
        is_supervised=is_supervised,
        job=read_job(args.job) if args.job else None,
    )
    logging.getLogger("sbpipe").info("done: %s", end)
    return STOPPED if end is RunEnd.STOPPED else 0
