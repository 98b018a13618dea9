"""`sbpipe run`: both roles as supervised child processes, one log each. Starts, watches and stops; reads events; knows no torch.

The children lead sessions of their own, so a Ctrl-C reaches only the supervisor, which then stops them in order: the trainer, which
leaves a checkpoint and says goodbye, and with it the selector. If the supervisor itself is killed, the kernel stops the children.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbpipe.config import Config, flatten, to_dict, toml_value
from sbpipe.errors import SbpipeError, UserError
from sbpipe.link.connection import FILE_NAME as CONNECTION
from sbpipe.progress import Display, Follower
from sbpipe.run_dir import CONFIG, LOGS, TRAINER_EVENTS, refuse_if_in_use
from sbpipe.weights.leftovers import sweep

_POLL_S = 0.2
_GRACE_S = 30.0
_SELECTOR_GRACE_S = 5.0
_FORGIVEN_AFTER_S = 300.0
_MAX_RESTARTS = 5
_RESTART_AFTER_S = 1.0
_PR_SET_PDEATHSIG = 1
SAYS = "sbpipe: "
"""How an error that is not a bug begins on the terminal."""
SUPERVISED = "SBPIPE_SUPERVISED"
"""In a child's environment: the supervisor shows its progress and keeps its log."""


class ChildFailed(SbpipeError):
    """A role ended badly; its exit code becomes ours."""

    def __init__(self, role: str, code: int, log: Path) -> None:
        super().__init__(_last_word(log) or f"the {role} ended with code {code}; the end of {log}:\n{_tail(log)}")
        self.exit_code = code if code > 0 else 128 - code


@dataclass
class Child:
    """One role's process."""

    role: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    num_restarts: int = 0
    started_at: float = 0.0
    restart_at: float = field(default=0.0)

    def start(self) -> None:
        """Start the process, its output into its log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.started_at = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
                env={**os.environ, SUPERVISED: "1"},
            )

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self.process.poll() if self.process is not None else None

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, timeout_s: float) -> None:
        """Wait for its end; kill it when the time is up."""
        if self.process is None:
            return
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def role_command(role: str, *arguments: str) -> list[str]:
    """The command line of one role, with this interpreter."""
    return [sys.executable, "-m", "sbpipe", role, *arguments]


def run_both(config: Config, given: Mapping[str, Any], path: Path, *, num_selectors: int, resume: bool, overwrite: bool) -> bool:
    """Start and supervise both roles of one run; whether it finished. A run that never began leaves nothing behind."""
    is_new = not path.exists()
    refuse_if_in_use(path)
    (path / CONNECTION).unlink(missing_ok=True)
    logs = path / LOGS
    if overwrite:
        shutil.rmtree(logs, ignore_errors=True)
    where = ["--run-dir", str(path), *(["--resume"] if resume else []), *(["--overwrite"] if overwrite else [])]
    trainer = Child(
        "trainer", role_command("trainer", *assignments(given), "--bind", "tcp://127.0.0.1:0", *where), logs / "trainer.log"
    )
    own = assignments(selector_settings(config))
    selectors = [
        Child(f"selector {k}", role_command("selector", *own, "--connect", str(path)), logs / f"selector-{k}.log")
        for k in range(num_selectors)
    ]
    try:
        return supervise(trainer, selectors, path, Display())
    except ChildFailed:
        if is_new and not (path / CONFIG).exists():
            shutil.rmtree(path)
        raise


def selector_settings(config: Config) -> dict[str, Any]:
    """What a selector does not learn from its trainer: its own device and link, and where they differ from the defaults only."""
    settings, defaults = flatten(to_dict(config)), flatten(to_dict(Config()))
    own = [key for key in settings if key.startswith(("selector.", "link.")) or key in ("data.workers", "train.device")]
    return {key: settings[key] for key in own if settings[key] != defaults[key] and key not in ("link.bind", "link.connect")}


def assignments(settings: Mapping[str, Any]) -> list[str]:
    """Settings as arguments of the command line."""
    return [part for key, value in settings.items() for part in ("--set", f"{key}={toml_value(value)}")]


def supervise(trainer: Child, selectors: list[Child], run_dir: Path, display: Display) -> bool:
    """Run both roles to the end; True if it was finished, False if it was stopped by a signal.

    A selector that dies is started again; a trainer that dies ends the run.
    """
    follower = Follower(run_dir / TRAINER_EVENTS)
    follower.new_events()
    is_stopping = _StopRequest()
    with is_stopping:
        trainer.start()
        for selector in selectors:
            selector.start()
        try:
            while trainer.code is None:
                show_events(follower, display)
                if is_stopping.count:
                    _stop(trainer, display)
                    break
                for selector in selectors:
                    _restart_if_dead(selector, trainer, display)
                time.sleep(_POLL_S)
            show_events(follower, display)
        except KeyboardInterrupt:
            trainer.stop(signal.SIGKILL)
        finally:
            _end(trainer, selectors)
            sweep()
    if trainer.code != 0 and not is_stopping.count:
        assert trainer.code is not None
        raise ChildFailed("trainer", trainer.code, trainer.log)
    return not is_stopping.count


def _end(trainer: Child, selectors: list[Child]) -> None:
    """Stop what still runs: the trainer, whose goodbye ends the selectors; then those that did not hear it."""
    trainer.stop()
    trainer.wait(_GRACE_S)
    for selector in selectors:
        if trainer.code != 0:
            selector.stop()
    for selector in selectors:
        selector.wait(_SELECTOR_GRACE_S)


def _stop(trainer: Child, display: Display) -> None:
    display.say("stopping: the trainer finishes its step and leaves a checkpoint (Ctrl-C again to kill)")
    trainer.stop()
    trainer.wait(_GRACE_S)


def _restart_if_dead(selector: Child, trainer: Child, display: Display) -> None:
    if selector.code in (None, 0) or trainer.code is not None:
        return
    if selector.code == UserError.exit_code or selector.num_restarts >= _MAX_RESTARTS:
        raise ChildFailed("selector", selector.code or 0, selector.log)
    if selector.restart_at == 0.0:
        if time.monotonic() - selector.started_at > _FORGIVEN_AFTER_S:
            selector.num_restarts = 0
        display.say(f"the selector ended with code {selector.code}; starting it again (its log: {selector.log})")
        selector.restart_at = time.monotonic() + _RESTART_AFTER_S * selector.num_restarts
    if time.monotonic() >= selector.restart_at:
        selector.restart_at = 0.0
        selector.num_restarts += 1
        selector.start()


def show_events(follower: Follower, display: Display) -> None:
    """Show what has happened since the last call."""
    for event in follower.new_events():
        if event.get("kind") == "progress":
            display.show(event)
        elif event.get("kind") == "selector":
            display.say(f"selector {event['selector']}: {event['state']}{_because(event)}")


def _because(event: dict[str, object]) -> str:
    return f" ({event['reason']})" if event.get("reason") else ""


class _StopRequest:
    """Counts SIGINT and SIGTERM; the second one raises."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> "_StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, *_: object) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt


def _last_word(log: Path) -> str:
    """What a role said was wrong, if it said so: that is all a person needs to see."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return lines[-1].removeprefix(SAYS) if lines and lines[-1].startswith(SAYS) else ""


def _tail(path: Path, lines: int = 12) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join(f"  {line}" for line in text[-lines:])
