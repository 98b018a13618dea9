"""`sbpipe trainer`: the trainer alone."""

import argparse
import logging
import os
import threading
from pathlib import Path
from typing import Any

from sbpipe.commands.ending import say_ending
from sbpipe.commands.settings import add_run_dir, add_settings, resolve_or_print
from sbpipe.errors import ConfigError, ResultsError, SbpipeError
from sbpipe.interrupts import STOPPED, leave_at_once
from sbpipe.machine import cores
from sbpipe.machine.place import own_place
from sbpipe.process import SUPERVISED, show_events
from sbpipe.process.bulletin import Bulletin
from sbpipe.runs.directory import LOGS, RunDir, default_path
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
    """Train with selectors that connect, or in one process."""
    config, _ = resolve_or_print(args)
    if config is None:
        return 0
    path = args.run_dir or default_path(config.mode)
    place = own_place()
    if config.mode == "data-parallel" and place is None:
        raise ConfigError("mode", config.mode, "needs all its replicas", "Start it with `sbpipe run`")
    # Before numpy and torch are imported: their thread pools are made of the cores they find.
    leave_at_once()
    cores.pin_role("trainer", config.train.device, config.train.threads, place.cores if place else None)
    from sbpipe.process import roles

    if (names := wanted(config)) and not os.environ.get(SUPERVISED):
        flags = " ".join(f"--{name}" for name in names)
        logging.getLogger("sbpipe").warning(
            "trackers have no effect on a trainer alone; beside it: sbpipe track %s %s", path, flags
        )
    watcher = _Watcher(is_supervised=bool(os.environ.get(SUPERVISED)))
    role = (
        roles.in_place(place) if place else roles.run_inline if config.mode == "inline" else roles.run_trainer
    )
    bulletin = Bulletin.inherited()
    doing = {} if bulletin is None else {"doing": bulletin.doing}
    summary: dict[str, Any] | None = None
    try:
        summary = role(
            config, path, resume=args.resume, overwrite=args.overwrite, on_open=watcher.open, **doing
        )
    except SbpipeError as error:
        summary = error.summary if isinstance(error, ResultsError) else None
        if bulletin is not None:
            bulletin.leave({"error": str(error), "summary": plain(summary or {})})
        raise
    finally:
        watcher.close()
        if summary and not watcher.is_supervised:
            say_ending(path, summary)
    if summary is None:
        return 0
    if bulletin is not None:
        bulletin.leave({"summary": plain(summary)})
    return 0 if summary["status"] == "finished" else STOPPED


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
        # What a resumed run wrote before is not shown again.
        follower.pass_over()
        while not self._is_over.wait(0.5):
            show_events(follower, display)
        show_events(follower, display)

    def close(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            # A terminal that takes no more output must not hold the end of a run.
            self._thread.join(2.0)
