"""`sbpipe run`: both roles as supervised processes."""

import argparse
from pathlib import Path
from typing import Any

from sbpipe.commands import trainer
from sbpipe.commands.ending import make_report, read_summary, say_ending
from sbpipe.commands.settings import add_run_dir, add_settings, resolve_or_print
from sbpipe.config import Config
from sbpipe.errors import ConfigError
from sbpipe.interrupts import STOPPED
from sbpipe.process import MAX_RESTARTS, ChildFailed, is_in_one_process, run_processes, selector_count
from sbpipe.runs.directory import claim, default_path, refuse_if_in_use

HELP = "both roles as supervised processes on what the machine has"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    add_settings(parser)
    add_run_dir(parser)
    parser.add_argument("--device", metavar="NAME", help="the trainer's device, e.g. cuda:0 (auto)")
    parser.add_argument(
        "--selector-device",
        metavar="NAMES",
        help="the selector's device, e.g. cuda:1 (auto); of several selectors one each: cuda:1,cuda:2",
    )
    parser.add_argument("--no-report", action="store_true", help="leave the report for `sbpipe report`")
    parser.add_argument(
        "--selectors",
        type=int,
        metavar="N",
        help="number of selector processes (1, or one for each name of --selector-device)",
    )
    parser.add_argument(
        "--trainers",
        type=int,
        metavar="N",
        help="ranks of the trainer, started by torchrun, that share each train batch (train.ranks)",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=MAX_RESTARTS,
        metavar="N",
        help="how often in a row, without a new checkpoint between, a trainer that died is started again "
        f"({MAX_RESTARTS})",
    )


def run(args: argparse.Namespace) -> int:
    """Start and supervise both roles."""
    config, given = resolve_or_print(args)
    if config is None:
        return 0
    if config.is_one_process and args.selectors is not None:
        reason = f"mode {config.mode!r} starts no selectors"
        raise ConfigError("--selectors", args.selectors, reason, "Leave it out, or choose another mode")
    # Stored, because `trainer.run` reads it too, and a second call may give another folder.
    args.run_dir = args.run_dir or default_path(config.mode)
    code = trainer.run(args) if is_in_one_process(config) else _run_processes(args, config, given)
    if code == 0 and not args.no_report:
        make_report(args.run_dir)
    return code


def _run_processes(args: argparse.Namespace, config: Config, given: dict[str, Any]) -> int:
    path: Path = args.run_dir
    # Refuse here, before any process starts, and not in a child's log.
    claim(path, resume=args.resume, overwrite=args.overwrite)
    # The trainer would refuse too, but only after this run's selectors had connected to the running trainer.
    refuse_if_in_use(path)
    num_selectors = selector_count(config, args.selectors)
    if args.max_restarts < 0:
        raise ConfigError(
            "--max-restarts", args.max_restarts, "must be at least 0", "Use 0 to end the run with its trainer"
        )
    # Printed at once: the processes print nothing until they have imported torch and read the data.
    print(f"starting; run directory: {path}", flush=True)
    try:
        ending = run_processes(
            config,
            given,
            path,
            num_selectors=num_selectors,
            resume=args.resume,
            overwrite=args.overwrite,
            max_restarts=args.max_restarts,
        )
    except ChildFailed as error:
        if error.summary:
            say_ending(path, error.summary)
        raise
    # From the file if the trainer was killed after it had written everything.
    say_ending(path, ending.summary or read_summary(path))
    return 0 if ending.is_finished else STOPPED
