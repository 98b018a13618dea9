"""One run directory as a record: whatever is there is read, whatever is missing or cut is said in `notes`."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbpipe.runs.checked import facts_of, is_placed, settings_of, summary_of
from sbpipe.runs.follower import Event as Event
from sbpipe.runs.follower import Follower
from sbpipe.runs.names.files import CONFIG, ENVIRONMENT, SELECTOR_EVENTS, SUMMARY, TRAINER_EVENTS, selector_of

SAME_HOST_S = 0.5
"""Two files whose wall and monotonic clocks differ by the same amount, within this, come from one host."""


@dataclass(frozen=True)
class Run:
    """What one run directory holds."""

    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    summary: dict[str, Any]
    events: dict[str, list[Event]]
    """The trainer's events by kind, in order, without steps that a resume took back."""
    selections: dict[str, list[Event]]
    """Each selector's `selection` events."""
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What a legend calls it."""
        return self.path.name

    def of(self, kind: str) -> list[Event]:
        """The trainer's events of one kind."""
        return self.events.get(kind, [])

    def setting(self, key: str, default: Any = None) -> Any:
        """A setting by its dotted key."""
        section, _, name = key.rpartition(".")
        return (self.config.get(section, {}) if section else self.config).get(name, default)


def read_run(path: Path) -> Run:
    """Read a run directory; a file that is missing, empty or damaged becomes a note, not an error."""
    notes: list[str] = []
    all_events = events_in(path / TRAINER_EVENTS, notes)
    selections = {
        selector_of(file.stem): [
            event for event in events_in(file, notes) if event.get("kind") == "selection"
        ]
        for file in sorted(path.glob(SELECTOR_EVENTS.format("*")))
    }
    # In one process the trainer's file holds the selections too.
    inline = [event for event in all_events if event.get("kind") == "selection"]
    if inline:
        selections["inline"] = inline
    # A resume leaves the old summary where it is until the run ends again.
    turns = [event["kind"] for event in all_events if event["kind"] in ("start", "summary")]
    is_going_on = "summary" in turns and turns[-1] == "start"
    if is_going_on:
        notes.append(f"{SUMMARY} is older than the run's last start, and left out")
    return Run(
        path=path,
        config=settings_of(_read_json(path / CONFIG, notes)),
        environment=facts_of(_read_json(path / ENVIRONMENT, notes)),
        summary={} if is_going_on else summary_of(_read_json(path / SUMMARY, notes)),
        events=_by_kind(all_events),
        selections=selections,
        notes=notes,
    )


def events_in(path: Path, notes: list[str]) -> list[Event]:
    """The whole events of a file, in order."""
    follower = Follower(path)
    events = follower.new_events()
    placed = [event for event in events if is_placed(event)]
    notes += follower.notes
    if len(placed) < len(events):
        notes.append(f"{path.name}: {len(events) - len(placed)} events do not say when they were")
    return placed


def is_taken_back(event: Mapping[str, Any], step: int) -> bool:
    """Whether a resume from a checkpoint of so many steps repeats an event's work, or has fixed it."""
    # A step is counted from 0, so step S comes after a checkpoint of S steps; other kinds count steps done.
    kind, at = event.get("kind"), event.get("step") or 0
    if kind == "step":
        return bool(at >= step)
    return kind == "failed" or (kind in ("progress", "eval", "scores") and at > step)


def _by_kind(events: list[Event]) -> dict[str, list[Event]]:
    """Events by kind, without those that a resume takes back."""
    kinds: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event["kind"] == "resumed":
            step = event.get("step", 0)
            kinds = defaultdict(
                list,
                {kind: [one for one in told if not is_taken_back(one, step)] for kind, told in kinds.items()},
            )
        kinds[event["kind"]].append(event)
    return dict(kinds)


def _read_json(path: Path, notes: list[str]) -> Any:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        # A run that goes on has no summary yet: nothing to remark.
        if path.name != SUMMARY:
            notes.append(f"{path.name} is missing")
        return {}
    except (OSError, ValueError, RecursionError):
        notes.append(f"{path.name} cannot be read")
        return {}
    if not isinstance(found, dict):
        notes.append(f"{path.name} does not hold what a run writes there")
    return found
