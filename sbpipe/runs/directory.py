"""The run directory: who may write to it, and the files a run leaves (`names/files.py`). Knows no role."""

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from sbpipe.config import (
    BUDGETS,
    Config,
    budget,
    digest,
    flatten,
    from_dict,
    is_local,
    resolve,
    to_dict,
    to_json,
)
from sbpipe.errors import ConfigError, RunDirError
from sbpipe.files import write_atomically
from sbpipe.machine.place import Place, launch_in
from sbpipe.runs.events import plain
from sbpipe.runs.names.files import CONFIG as CONFIG
from sbpipe.runs.names.files import ENVIRONMENT, LOCK
from sbpipe.runs.names.files import LOGS as LOGS
from sbpipe.runs.names.files import SELECTOR_EVENTS as SELECTOR_EVENTS
from sbpipe.runs.names.files import SUMMARY as SUMMARY
from sbpipe.runs.names.files import TRAINER_EVENTS as TRAINER_EVENTS

_BEFORE_A_RUN = (LOGS, LOCK, ENVIRONMENT)
"""These are written before the settings, which make a directory a run; alone they do not make it used."""
_LOCKS = Path("/proc/locks")


def default_path(name: str) -> Path:
    """A new directory under runs/, named by the time and this name: a run's mode, or a study's."""
    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    return next(
        path
        for k in range(1000)
        if not (path := base if k == 0 else base.with_name(f"{base.name}-{k}")).exists()
    )


def claim(path: Path, *, resume: bool, overwrite: bool) -> None:
    """Check that a run may be written to this path. Changes nothing."""
    if path.exists() and not path.is_dir():
        raise RunDirError(f"{path} is a file. Name a directory with --run-dir")
    is_run = (path / CONFIG).exists()
    if resume and not is_run:
        raise RunDirError(
            f"{path} holds no run to resume ({CONFIG} is missing). Check --run-dir, or leave out --resume"
        )
    if path.is_dir() and not is_unused(path) and not resume:
        if not overwrite:
            raise RunDirError(
                f"{path} is not empty. Use --resume to continue the run there, --overwrite to replace it, "
                "or another --run-dir"
            )
        if not is_run:
            raise RunDirError(
                f"{path} is not empty and is no run directory ({CONFIG} is missing); "
                "--overwrite only replaces runs. Choose another --run-dir"
            )
    refuse_foreign_links(path, *(path.iterdir() if path.is_dir() else ()))
    # The nearest folder that exists is where a new one would be made.
    for parent in [path, *path.parents]:
        if parent.exists():
            if not parent.is_dir():
                raise RunDirError(f"{parent} is a file, not a folder. Choose another place with --run-dir")
            if not os.access(parent, os.W_OK):
                raise RunDirError(f"{parent} is not writable. Choose another place with --run-dir")
            break


def refuse_foreign_links(*places: Path) -> None:
    """Refuse places that are, or hold, links of another user: what is written would land where they point."""
    for place in places:
        is_folder = place.is_dir() and not place.is_symlink()
        for entry in (place, *(place.iterdir() if is_folder else ())):
            if entry.is_symlink() and (owner := entry.lstat().st_uid) not in (os.geteuid(), 0):
                raise RunDirError(
                    f"{entry} is a link of user {owner}, and what is written there would land wherever that "
                    "user says. Copy the folder without it, or write to a place of your own"
                )


def is_unused(path: Path) -> bool:
    """Whether a folder holds nothing but files that are written before a run begins."""
    return path.is_dir() and all(entry.name in _BEFORE_A_RUN for entry in path.iterdir())


def resumed(path: Path, given: Mapping[str, Any]) -> Config:
    """The settings of the run in a directory, with the given ones that may change on a resume.

    Settings that do not decide what is trained may change, and the budget may grow.
    """
    claim(path, resume=True, overwrite=False)
    before = _settings_in(path)
    old, ((end, length),) = flatten(to_dict(before)), budget(before).items()
    for key in given:
        if key in BUDGETS and key != end and given[key] != old[key]:
            way_out = f"Set {end} to more than {length:g}"
            raise ConfigError(key, given[key], f"the run in {path} is measured by {end}", way_out)
    after = resolve(old, given)
    new = flatten(to_dict(after))
    for key in given:
        if old[key] != new[key] and not is_local(key) and not (key == end and new[key] > length):
            words = "A run can be made longer, not shorter" if key == end else "Leave it out"
            reason = f"the run in {path} was started with {old[key]!r}"
            raise ConfigError(key, new[key], reason, f"{words}, or start a new run")
    if is_finished(path) and digest(before) == digest(after):
        raise RunDirError(
            f"the run in {path} is finished: there is nothing to resume. Lengthen it with --set {end}=N, "
            f"more than {length:g}, or use --overwrite to run it again"
        )
    return after


def _settings_in(path: Path) -> Config:
    try:
        return from_dict(json.loads((path / CONFIG).read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError, RecursionError, ConfigError) as error:
        raise RunDirError(
            f"the settings of the run in {path} cannot be read ({error}). Resume with the "
            "version that wrote them, or use --overwrite to begin it anew"
        ) from None


def is_finished(path: Path) -> bool:
    """Whether the run in a directory has finished."""
    try:
        return bool(json.loads((path / SUMMARY).read_text(encoding="utf-8"))["status"] == "finished")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def is_started_again(path: Path, place: Place) -> bool:
    """Whether the run in a directory was written by these same ranks, before torchrun restarted them.

    Told by the launch that wrote it, not by torchrun's count of restarts: torchrun also restarts ranks that
    were refused because the run is another's, and counts nothing where nodes come or go.
    """
    if not (path / CONFIG).exists():
        return False
    if place.launch:
        return place.launch == _launch_of(path)
    # Without the launch's name only ranks above 0 accept: rank 0 writes the run, and refuses.
    return place.rank > 0 and place.num_restarts > 0


def _launch_of(path: Path) -> str:
    try:
        return str(json.loads((path / ENVIRONMENT).read_text(encoding="utf-8"))["launch"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def make_private(path: Path) -> None:
    """Make a directory that only this user can reach; an existing one is left as it is."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The umask must not decide: the run's keys, weights and data lie here.
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> RunDirError:
    """The error for a run directory that the system does not let us write to."""
    return RunDirError(f"{path} cannot be written ({error.strerror}). Choose another place with --run-dir")


def refuse_if_in_use(path: Path) -> None:
    """Refuse a directory that a trainer works in: it holds the lock."""
    if (path / LOCK).exists():
        with (path / LOCK).open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunDirError(
                    f"another trainer is working in {path}. Stop it, or choose another --run-dir"
                ) from None


def is_held(run: Path) -> bool:
    """Whether a process of this host holds a run's lock; True if that cannot be known."""
    # Reads the kernel's table instead of trying the lock: trying would hold it for an instant, and a trainer
    # that starts in that instant would be refused.
    try:
        inode, table = (run / LOCK).stat().st_ino, _LOCKS.read_text(encoding="ascii")
    except FileNotFoundError as missing:
        return bool(missing.filename == os.fspath(_LOCKS))
    except OSError:
        return True
    # A line reads `7: FLOCK ADVISORY WRITE pid major:minor:inode 0 EOF`; a waiting lock has `->` in front.
    locks = [line.split() for line in table.splitlines()]
    return any(
        lock[1] == "FLOCK" and any(word.endswith(f":{inode}") for word in lock)
        for lock in locks
        if len(lock) > 1
    )


class RunDir:
    """A claimed run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    @classmethod
    def open(cls, path: Path, *, resume: bool, overwrite: bool) -> "RunDir":
        """Claim the directory, make or clear it, and lock it against a second trainer."""
        claim(path, resume=resume, overwrite=overwrite)
        try:
            make_private(path)
            run_dir = cls(path)
            run_dir._lock()
        except OSError as error:
            raise unwritable(path, error) from None
        # Only once it is locked: until then the files may belong to a running trainer.
        if overwrite and not resume:
            run_dir._clear()
        return run_dir

    def _clear(self) -> None:
        try:
            # The settings go last: if a kill interrupts this, the rest must still be recognised as a run.
            for entry in sorted(self.path.iterdir(), key=lambda entry: entry.name == CONFIG):
                if entry.name not in _BEFORE_A_RUN:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        # The kernel drops the lock with the open file: a killed trainer leaves none behind.
        self._lock_file = (self.path / LOCK).open("a")
        # A forked loader may outlive a killed trainer for a moment, and must not keep its lock.
        os.register_at_fork(after_in_child=self._lock_file.close)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock_file.close()
            raise RunDirError(
                f"another trainer is working in {self.path}. Stop it, or choose another --run-dir"
            ) from None

    def close(self) -> None:
        """Release the lock, so that another trainer may work here."""
        self._lock_file.close()

    def write_config(self, config: Config) -> None:
        """Write the resolved settings."""
        write_config(self.path, config)

    def lengthen(self, config: Config) -> None:
        """If this is a longer budget, write its settings and remove the summary: the run goes on."""
        if digest(_settings_in(self.path)) == digest(config):
            return
        try:
            (self.path / SUMMARY).unlink(missing_ok=True)
            self.write_config(config)
        except OSError as error:
            raise unwritable(self.path, error) from None

    def write_environment(self, devices: dict[str, str]) -> None:
        """Write versions, devices and the git commit, if any."""
        names = ("sbpipe", "torch", "torchvision", "numpy", "pyzmq", "msgpack")
        facts = {
            "versions": {"python": platform.python_version(), **{name: _version(name) for name in names}},
            "devices": devices,
            "host": platform.node(),
            "platform": platform.platform(),
            "cores": len(os.sched_getaffinity(0)),
            "git_commit": _git_commit(),
            "command": sys.argv,
            "launch": launch_in(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        write_atomically(self.path / ENVIRONMENT, json.dumps(facts, indent=2) + "\n")

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write the numbers of the run."""
        write_summary(self.path, summary)


def write_config(folder: Path, config: Config) -> None:
    """Write resolved settings into a folder, which makes it a run directory."""
    write_atomically(folder / CONFIG, to_json(config))


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Write the numbers of a run into a folder."""
    write_atomically(folder / SUMMARY, json.dumps(plain(summary), indent=2, allow_nan=False) + "\n")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _git_commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
