"""Shows the events of a run's roles as lines of a terminal. It must not know processes."""

from pathlib import Path
from typing import Any

from sbpipe.process.selector_care import Says
from sbpipe.runs.directory import SELECTOR_EVENTS
from sbpipe.runs.follower import Follower, TrainerFollower
from sbpipe.show.terminal import Display


def show_events(
    follower: TrainerFollower, display: Display, *, with_warnings: bool = False
) -> list[dict[str, Any]]:
    """Show and return the events since the last call; with notes and warnings where no log is shown."""
    events = list(follower.new_events())
    for event in events:
        if event.get("kind") == "progress":
            display.show(event)
        elif event.get("kind") in ("note", "warning") and with_warnings:
            display.say(_said(event))
        elif event.get("kind") == "selector" and event.get("selector") != "inline":
            display.say(f"selector {event['selector']}: {event['state']}{_because(event)}")
        elif event.get("kind") == "auto":
            display.say(f"{event['key']} = 'auto': {event['new']} instead of {event['old']}{_because(event)}")
    return events


def _said(event: dict[str, Any]) -> str:
    """A note or a warning as a line."""
    return f"{'warning: ' if event['kind'] == 'warning' else ''}{event['text']}"


def _because(event: dict[str, object]) -> str:
    return f" ({event['reason']})" if event.get("reason") else ""


class SelectorEvents:
    """The selectors' messages to the user, and how many leases each of them has answered."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._followers: dict[Path, Follower] = {}
        self._answered: dict[Path, int] = {}

    def pass_over(self) -> None:
        """Skip everything that is there now."""
        self._find()
        for follower in self._followers.values():
            follower.pass_over()

    def _find(self) -> None:
        for path in sorted(self._run_dir.glob(SELECTOR_EVENTS.format("*"))):
            self._followers.setdefault(path, Follower(path))

    def new_events(self) -> list[dict[str, Any]]:
        """The events of all selectors since the last call."""
        self._find()
        found: list[dict[str, Any]] = []
        for path, follower in self._followers.items():
            events = follower.new_events()
            num_answered = sum(event.get("kind") == "selection" for event in events)
            self._answered[path] = self._answered.get(path, 0) + num_answered
            found += events
        return found

    def show(self, display: Says) -> None:
        """Show their notes and warnings."""
        for event in self.new_events():
            if event.get("kind") in ("note", "warning"):
                display.say(_said(event))

    def num_answered(self, pid: int) -> int:
        """Leases that the selector with this process id has answered; its events file is named by the id."""
        return sum(count for path, count in self._answered.items() if f"-{pid}-" in path.name)
