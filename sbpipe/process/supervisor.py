"""Runs a run's processes to the end: starts, watches and stops them, shows their events. Knows no torch.

The children lead sessions of their own, so a Ctrl-C reaches only the supervisor, which then stops them in
order: the trainer, which leaves a checkpoint and says goodbye, and with it the selector. If the supervisor
itself is killed, the kernel stops the children.
"""

import signal
import threading
import time
from pathlib import Path
from typing import Any

from sbpipe.errors import UserError
from sbpipe.process.child import Child, ChildFailed
from sbpipe.runs.directory import CONFIG, SELECTOR_EVENTS, TRAINER_EVENTS
from sbpipe.runs.follower import Follower
from sbpipe.show.terminal import Display
from sbpipe.weights.leftovers import sweep

_POLL_S = 0.2
_GRACE_S = 30.0
_OTHERS_GRACE_S = {"restart": 5.0, "vital": 5.0, "optional": 30.0}
"""How long each may take to end after the trainer; a tracker may still have numbers to upload."""
# A selector that ran this long does not crash at its start: its restarts are counted from 0 again.
_FORGIVEN_AFTER_S = 300.0
_MAX_RESTARTS = 5
_RESTART_AFTER_S = 1.0


def supervise(trainer: Child, others: list[Child], run_dir: Path, display: Display) -> bool:
    """Run the trainer and the others to the end; whether it finished (False: stopped by a signal).

    A trainer that dies ends the run; what the death of another means, its `upkeep` says.
    """
    follower, selectors = Follower(run_dir / TRAINER_EVENTS), _Selectors(run_dir)
    # Passes over what an earlier run here, or the part before a resume, has left.
    follower.new_events()
    selectors.new_events()
    is_stopping = _StopRequest()
    with is_stopping:
        trainer.start()
        for other in others:
            other.start()
        try:
            while trainer.code is None:
                show_events(follower, display, with_warnings=True)
                selectors.show(display)
                if is_stopping.count:
                    _stop(trainer, display, has_begun=(run_dir / CONFIG).exists())
                    break
                for other in others:
                    _look_after(other, trainer, display)
                time.sleep(_POLL_S)
            # Once more: the last events may have been written after the look before.
            show_events(follower, display, with_warnings=True)
            selectors.show(display)
        except KeyboardInterrupt:
            trainer.stop(signal.SIGKILL)
        finally:
            _end(trainer, others)
            # A trainer that was killed could not remove its slots.
            sweep()
    if trainer.code != 0 and not is_stopping.count:
        raise ChildFailed(trainer)
    return not is_stopping.count


def _end(trainer: Child, others: list[Child]) -> None:
    """Stop what still runs: the trainer, whose goodbye ends the selectors; then those it did not reach."""
    trainer.stop()
    trainer.wait(_GRACE_S)
    for other in others:
        # A tracker sees for itself that the run is over, and how.
        if trainer.code != 0 and other.upkeep != "optional":
            other.stop()
    for other in others:
        other.wait(_OTHERS_GRACE_S[other.upkeep])


def _stop(trainer: Child, display: Display, *, has_begun: bool) -> None:
    # A trainer that has not opened its run ends at once.
    if has_begun:
        display.say("stopping: the trainer finishes its step and leaves a checkpoint (Ctrl-C again to kill)")
    trainer.stop()
    trainer.wait(_GRACE_S)


def _look_after(child: Child, trainer: Child, display: Display) -> None:
    if child.code in (None, 0) or trainer.code is not None:
        return
    if child.upkeep == "restart":
        _restart(child, display)
    elif child.upkeep == "vital":
        raise ChildFailed(child)
    elif not child.is_given_up:
        child.is_given_up = True
        display.say(
            f"the {child.role} ended with code {child.code}; the run goes on without it (its log: "
            f"{child.log})"
        )


def _restart(child: Child, display: Display) -> None:
    # A user's mistake would end the next one in the same way.
    if child.code == UserError.exit_code or child.num_restarts >= _MAX_RESTARTS:
        raise ChildFailed(child)
    if child.restart_at == 0.0:
        if time.monotonic() - child.started_at > _FORGIVEN_AFTER_S:
            child.num_restarts = 0
        display.say(
            f"the {child.role} ended with code {child.code}; starting it again (its log: {child.log})"
        )
        child.restart_at = time.monotonic() + _RESTART_AFTER_S * child.num_restarts
    if time.monotonic() >= child.restart_at:
        child.restart_at = 0.0
        child.num_restarts += 1
        child.start()


def show_events(follower: Follower, display: Display, *, with_warnings: bool = False) -> None:
    """Show events since the last call; warnings too where the trainer's log is not on this terminal."""
    for event in follower.new_events():
        if event.get("kind") == "progress":
            display.show(event)
        elif event.get("kind") == "warning" and with_warnings:
            display.say(f"warning: {event['text']}")
        elif event.get("kind") == "selector" and event.get("selector") != "inline":
            display.say(f"selector {event['selector']}: {event['state']}{_because(event)}")
        elif event.get("kind") == "auto":
            display.say(f"{event['key']} = 'auto': {event['new']} instead of {event['old']}{_because(event)}")


def _because(event: dict[str, object]) -> str:
    return f" ({event['reason']})" if event.get("reason") else ""


class _Selectors:
    """What the selectors of a run have to say to its user."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._followers: dict[Path, Follower] = {}

    def new_events(self) -> list[dict[str, Any]]:
        """Events of all of them since the last call."""
        for path in sorted(self._run_dir.glob(SELECTOR_EVENTS.format("*"))):
            self._followers.setdefault(path, Follower(path))
        return [event for follower in self._followers.values() for event in follower.new_events()]

    def show(self, display: Display) -> None:
        """Their notes and warnings."""
        for event in self.new_events():
            if event.get("kind") in ("note", "warning"):
                display.say(f"{'warning: ' if event['kind'] == 'warning' else ''}{event['text']}")


class _StopRequest:
    """Counts SIGINT and SIGTERM; the second one raises."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> "_StopRequest":
        # Python allows handlers in the main thread only; a run started from another one goes without.
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)
            }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, *_: object) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt
