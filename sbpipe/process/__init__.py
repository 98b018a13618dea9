"""`sbpipe run`: which processes a run needs, started and supervised. Knows no torch."""

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sbpipe.config import Config, flatten, known_keys, to_dict, toml_value
from sbpipe.errors import ConfigError
from sbpipe.process.child import SAYS, SUPERVISED, Child, ChildFailed, launched, role_command
from sbpipe.process.crew import Crew
from sbpipe.process.showing import show_events
from sbpipe.process.standing import Standing
from sbpipe.process.supervisor import Ending, Supervisor
from sbpipe.runs.directory import LOGS, is_unused, make_private, refuse_if_in_use
from sbpipe.runs.names.files import CONNECTION
from sbpipe.show.terminal import Display
from sbpipe.show.trackers import check_installed, wanted

__all__ = [
    "MAX_RESTARTS",
    "SAYS",
    "SUPERVISED",
    "Child",
    "ChildFailed",
    "Ending",
    "assignments",
    "is_in_one_process",
    "role_command",
    "run_processes",
    "selector_count",
    "selector_settings",
    "show_events",
    "trackers_of",
]

MAX_RESTARTS = 3
"""By default, how often in a row a dead trainer is restarted without a new checkpoint."""


_OF_BOTH = ("data.workers", "data.download", "train.device", "train.ranks", "model.options")


def is_in_one_process(config: Config) -> bool:
    """Whether a run needs no process but its caller's: mode inline, where a debugger reaches both roles."""
    return config.mode == "inline" and config.num_ranks == 1 and not wanted(config)


def run_processes(
    config: Config,
    given: Mapping[str, Any],
    path: Path,
    *,
    num_selectors: int,
    resume: bool,
    overwrite: bool,
    max_restarts: int = MAX_RESTARTS,
) -> Ending:
    """Start and supervise all processes of one run; returns how it ended.

    A run that never began leaves nothing behind.
    """
    is_new = not path.exists()
    refuse_if_in_use(path)
    # Checked here: the tracker's process would miss its library only after training had begun.
    check_installed(wanted(config))
    # Selectors start together with the trainer: an old file would give them the last trainer's address.
    (path / CONNECTION).unlink(missing_ok=True)
    if overwrite:
        shutil.rmtree(path / LOGS, ignore_errors=True)
    # Before the first log is opened: that would create the directory readable for all.
    make_private(path)
    command = role_command("trainer", "--run-dir", str(path))
    if config.num_ranks > 1:
        command = launched(command, config.num_ranks)
    settings = assignments(given)
    first = [*settings, *(["--resume"] if resume else []), *(["--overwrite"] if overwrite else [])]
    trainer = Child("trainer", command + first, path / LOGS / "trainer.log", config.num_ranks > 1)

    def renew(resumed: bool) -> None:
        (path / CONNECTION).unlink(missing_ok=True)
        trainer.command = command + ([*settings, "--resume"] if resumed else first)

    standing = Standing(path, resume=resume)
    try:
        crew = Crew(trainer, renew, _selectors(config, path, num_selectors), trackers_of(config, path))
        return Supervisor(config, crew, path, standing, max_restarts, Display()).run()
    finally:
        # The trainer ended before it opened its run: only logs lie here, and the error quotes them.
        if is_new and is_unused(path):
            shutil.rmtree(path, ignore_errors=True)


def _selectors(config: Config, path: Path, count: int) -> list[Child]:
    if config.is_one_process:
        return []
    names, own = config.selector.devices, selector_settings(config)
    # One name stands for all selectors: `auto` may mean the same device for each.
    each = [own | {"selector.device": name} for name in names] if len(names) > 1 else [own] * count
    return [
        Child(
            f"selector {k}",
            role_command("selector", *assignments(settings), "--connect", str(path)),
            path / LOGS / f"selector-{k}.log",
        )
        for k, settings in enumerate(each)
    ]


def selector_count(config: Config, given: int | None = None) -> int:
    """How many selectors a run has: as many as were asked for, or as many as devices are named."""
    if given is not None and given < 1:
        raise ConfigError(
            "--selectors", given, "must be at least 1", "Use --mode inline to run in one process"
        )
    named = len(config.selector.devices)
    if given is not None and named > 1 and given != named:
        reason = f"selector.device = {config.selector.device!r} names {named} devices"
        raise ConfigError("--selectors", given, reason, "Name one device for each selector, or one for all")
    return named if named > 1 else given or 1


def trackers_of(config: Config, path: Path) -> list[Child]:
    """The process that copies a run's numbers to the trackers named in its settings."""
    names = wanted(config)
    if not names:
        return []
    # Events of an earlier run may still lie here, and are not to be copied.
    since = f"{time.time():.3f}"
    command = role_command("track", str(path), "--follow", "--since", since, *(f"--{name}" for name in names))
    return [Child("tracker", command, path / LOGS / "tracker.log")]


def selector_settings(config: Config) -> dict[str, Any]:
    """The settings that a selector does not take from its trainer, where they are not the default.

    These are its device and link, and every setting that leads to code or files: a selector trusts no trainer
    with those. Here both roles have the same user, who may pass them on.
    """
    settings, defaults = flatten(to_dict(config)), flatten(to_dict(Config()))
    own = [
        key
        for key, known in known_keys().items()
        if key.startswith(("selector.", "link."))
        or key in _OF_BOTH
        or known.metadata["reaches"] in ("code", "files")
    ]
    return {
        key: settings[key]
        for key in own
        if settings[key] != defaults[key] and key not in ("link.bind", "link.connect", "link.keys")
    }


def assignments(settings: Mapping[str, Any]) -> list[str]:
    """Settings as arguments of the command line."""
    return [part for key, value in settings.items() for part in ("--set", f"{key}={toml_value(value)}")]
