"""`sbpipe trainer`: the trainer alone."""

import argparse
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sbpipe import collector
from sbpipe.commands.ending import say_ending
from sbpipe.commands.settings import add_run_dir, add_settings, name_run, resolve_or_print
from sbpipe.config import Config
from sbpipe.errors import ConfigError, ResultsError, SbpipeError
from sbpipe.interrupts import STOPPED, leave_at_once
from sbpipe.machine import cores
from sbpipe.machine.place import ALONE, Place, own_place
from sbpipe.process import SUPERVISED, show_events
from sbpipe.process.bulletin import Bulletin
from sbpipe.process.child import die_with_parent
from sbpipe.runs.directory import LOGS, RunDir, default_path, is_finished, is_started_again
from sbpipe.runs.events import plain
from sbpipe.runs.follower import TrainerFollower
from sbpipe.show.terminal import Display
from sbpipe.show.trackers import wanted
from sbpipe.text import LogFormatter

HELP = "the trainer alone; selectors connect to it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    add_settings(parser)
    add_run_dir(parser)
    parser.add_argument("--device", metavar="NAME", help="the trainer's device, e.g. cuda:0 (auto)")
    parser.add_argument(
        "--bind",
        metavar="ADDRESS",
        help="where to listen, e.g. tcp://0.0.0.0:5570 (a Unix socket that only this user can reach)",
    )
    parser.add_argument(
        "--keys", metavar="DIR", help="keys made by `sbpipe keys`, for selectors on other hosts"
    )


def run(args: argparse.Namespace) -> int:
    """Train with selectors that connect, or in one process; under torchrun, as one of its ranks."""
    place = own_place()
    if place is not None and not _join_ranks(args, place):
        return 0
    config, _ = resolve_or_print(args)
    if config is None:
        return 0
    if place is None:
        _refuse_missing_ranks(config)
    path = args.run_dir or default_path(config.mode)
    place = place or ALONE
    # Before numpy and torch are imported: their thread pools are made of the cores they find.
    leave_at_once()
    spare = cores.pin_role("trainer", config.train.device, config.train.threads, _cores_of(config, place))
    _warn_of_trackers(config, path)
    bulletin = Bulletin.inherited()
    summary = _train(args, config, path, place, spare, bulletin)
    if not summary:
        return 0
    code = 0 if summary["status"] == "finished" else STOPPED
    if bulletin is not None:
        bulletin.leave({"summary": plain(summary), "code": code})
    return code


def _train(
    args: argparse.Namespace,
    config: Config,
    path: Path,
    place: Place,
    spare: cores.SpareCores,
    bulletin: Bulletin | None,
) -> dict[str, Any]:
    """Train, and show progress unless a supervisor does; returns the summary. Errors go to the supervisor."""
    with collector.paused():
        from sbpipe.process import roles

    watcher = _Watcher(is_supervised=bool(os.environ.get(SUPERVISED)))
    role = roles.run_inline if config.is_one_process else roles.run_trainer
    # In one process the dispatcher's thread scores, and needs the trainer's cores.
    own: dict[str, Any] = {} if config.is_one_process else {"spare": spare}
    if bulletin is not None:
        own["doing"] = bulletin.doing
    summary: dict[str, Any] = {}
    try:
        summary = role(
            config,
            path,
            resume=args.resume,
            overwrite=args.overwrite,
            on_open=watcher.open,
            place=place,
            **own,
        )
    except SbpipeError as error:
        summary = error.summary if isinstance(error, ResultsError) else {}
        if bulletin is not None and not bulletin.last_word:
            word = {"error": str(error), "summary": plain(summary), "code": error.exit_code}
            bulletin.leave(word)
        raise
    finally:
        watcher.close()
        if summary and not watcher.is_supervised:
            say_ending(path, summary)
    return summary


def _refuse_missing_ranks(config: Config) -> None:
    if config.num_ranks > 1:
        way_out = (
            f"Start it with `sbpipe run`, or torchrun --nproc-per-node {config.num_ranks} -m sbpipe trainer"
        )
        raise ConfigError(
            "train.ranks", config.num_ranks, "this is one process, and nothing starts the others", way_out
        )


def _warn_of_trackers(config: Config, path: Path) -> None:
    if (names := wanted(config)) and not os.environ.get(SUPERVISED):
        flags = " ".join(f"--{name}" for name in names)
        logging.getLogger("sbpipe").warning(
            "trackers have no effect on a trainer alone; beside it: sbpipe track %s %s", path, flags
        )


def _join_ranks(args: argparse.Namespace, place: Place) -> bool:
    """Learn from torchrun the number of ranks, and whether they were restarted; False = all is done."""
    die_with_parent()
    args.assignments = [*args.assignments, f"train.ranks={place.world}"]
    name_run(args)
    if args.run_dir is None:
        reason = "all ranks, and those that are started again, work on one run"
        raise ConfigError("--run-dir", None, f"is missing: {reason}", "Name a folder: --run-dir runs/NAME")
    if args.overwrite and place.may_restart:
        reason = "after a restart torchrun would give it again, and the run would begin anew"
        raise ConfigError("--overwrite", True, reason, f"Remove {args.run_dir} first, or name another folder")
    if is_started_again(args.run_dir, place):
        args.resume = True
        if is_finished(args.run_dir):
            if place.rank == 0:
                logging.getLogger("sbpipe").info("%s is finished: nothing to do", args.run_dir)
            return False
    return True


def _cores_of(config: Config, place: Place) -> Callable[[list[int], int], list[int]] | None:
    """How a rank chooses its cores; None = like a single trainer."""
    if place.world == 1 and config.mode != "data-parallel":
        return None

    def own(available: list[int], threads: int) -> list[int]:
        # This host's selector has the other half, unless there is none, or too few cores for all ranks.
        half = cores.share("trainer", 0, available)
        is_enough = config.mode != "data-parallel" and len(half) >= place.local_world
        return place.cores(half if is_enough else available, threads)

    return own


class _Watcher:
    """Shows a trainer's progress and copies its log into the run directory, unless a supervisor does both."""

    def __init__(self, *, is_supervised: bool) -> None:
        self.is_supervised = is_supervised
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, run_dir: RunDir) -> None:
        if self.is_supervised:
            return
        (run_dir.path / LOGS).mkdir(exist_ok=True)
        handler = logging.FileHandler(run_dir.path / LOGS / "trainer.log")
        handler.setFormatter(LogFormatter("%(asctime)s %(message)s"))
        logging.getLogger().addHandler(handler)
        self._thread = threading.Thread(
            target=self._watch, args=(run_dir.path,), name="progress", daemon=True
        )
        self._thread.start()

    def _watch(self, run: Path) -> None:
        follower, display = TrainerFollower(run), Display()
        # Events from before a resume are not shown again.
        follower.pass_over()
        while not self._is_over.wait(0.5):
            show_events(follower, display)
        show_events(follower, display)

    def close(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            # A terminal that takes no more output must not delay the end of a run.
            self._thread.join(2.0)
