"""One run directory as a record. Everything there is read; `notes` say what is missing or cut.

Files are read as streams with bounded memory: for a long run the record holds what `gathering.py` keeps.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbpipe.runs.checked import facts_of, settings_of, summary_of
from sbpipe.runs.follower import Event as Event
from sbpipe.runs.follower import Follower
from sbpipe.runs.gathering import Evaluations, FirstAndLast, Scores, StepCurve, Stretch
from sbpipe.runs.gathering import is_taken_back as is_taken_back
from sbpipe.runs.json_file import TooLongError, read_json
from sbpipe.runs.names import KINDS
from sbpipe.runs.names.files import (
    CONFIG,
    ENVIRONMENT,
    SELECTOR_EVENTS,
    SUMMARY,
    TRAINER_EVENTS,
    TRAINER_RECENT,
    selector_of,
)
from sbpipe.runs.numbers import number

SAME_HOST_S = 0.5
"""Two files come from one host if the offsets between their wall and monotonic clocks agree within this."""
MOST_EVENTS = {"step": 10_000, "selection": 10_000, "progress": 10_000}
"""How many first events of a kind are kept; kinds not named here are rare."""
MOST_RARE = 1000
MOST_SELECTIONS = 40_000
"""The same, for all selectors together."""


@dataclass(frozen=True)
class Run:
    """What one run directory holds."""

    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    summary: dict[str, Any]
    events: dict[str, list[Event]]
    """The trainer's events by kind, in order, without steps that a resume repeated; if many, some."""
    selections: dict[str, list[Event]]
    """Each selector's `selection` events; if many, the first."""
    notes: list[str] = field(default_factory=list)
    steps: list[Stretch] = field(default_factory=list)
    """Every step, in stretches of one or more."""

    @property
    def name(self) -> str:
        """Its name in a legend."""
        return self.path.name

    @property
    def num_steps(self) -> int:
        """How many steps the events cover."""
        return sum(stretch.num_steps for stretch in self.steps)

    def of(self, kind: str) -> list[Event]:
        """The trainer's events of one kind."""
        return self.events.get(kind, [])

    def setting(self, key: str, default: Any = None) -> Any:
        """A setting by its dotted key."""
        section, _, name = key.rpartition(".")
        found = self.config.get(section, {}) if section else self.config
        return found.get(name, default) if isinstance(found, dict) else default


class _TrainerFile:
    """Gathers the trainer's events, one after the other."""

    def __init__(self) -> None:
        self._kinds: dict[str, FirstAndLast | Evaluations] = {"eval": Evaluations(), "scores": Scores()}
        self.curve = StepCurve()
        self._has_ended = False
        self.goes_on = False
        """Whether the run was started again after its summary."""

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, and was not started again."""
        return self._has_ended and not self.goes_on

    def add(self, event: Event) -> None:
        kind = event["kind"]
        if kind not in KINDS:
            return
        if kind == "resumed":
            self._take_back(number(event, "step") or 0)
        if kind in ("step", "steps"):
            self.curve.add(event)
        if kind in ("start", "summary"):
            self._has_ended = self._has_ended or kind == "summary"
            self.goes_on = self._has_ended and kind == "start"
        if kind not in self._kinds:
            self._kinds[kind] = FirstAndLast(MOST_EVENTS.get(kind, MOST_RARE))
        self._kinds[kind].add(event)

    def _take_back(self, step: float) -> None:
        for kept in (self.curve, *self._kinds.values()):
            kept.take_back(step)

    def by_kind(self) -> dict[str, list[Event]]:
        return {kind: kept.events() for kind, kept in self._kinds.items() if kept.events()}


def read_run(path: Path) -> Run:
    """Read a run directory; a file that is missing, empty or damaged becomes a note, not an error."""
    notes: list[str] = []
    trainer = _read_trainer(path, notes)
    events = trainer.by_kind()
    selections = _read_selections(path, notes)
    # In one process the trainer's file holds the selections too.
    if "selection" in events:
        selections["inline"] = events["selection"]
    # A resume leaves the old summary where it is until the run ends again.
    if trainer.goes_on:
        notes.append(f"{SUMMARY} is older than the run's last start, and left out")
    return Run(
        path=path,
        config=settings_of(_read_json(path / CONFIG, notes)),
        environment=facts_of(_read_json(path / ENVIRONMENT, notes)),
        summary={} if trainer.goes_on else summary_of(_read_json(path / SUMMARY, notes)),
        events=events,
        selections=selections,
        notes=notes,
        steps=trainer.curve.rows,
    )


def _read_trainer(path: Path, notes: list[str]) -> _TrainerFile:
    found, follower = _TrainerFile(), Follower(path / TRAINER_EVENTS)
    for event in follower.stream():
        found.add(event)
    notes += follower.notes
    if not found.is_over:
        # The passing events hold a newer progress of a long run.
        for event in Follower(path / TRAINER_RECENT).stream():
            if event["kind"] == "progress":
                found.add(event)
    return found


def _read_selections(path: Path, notes: list[str]) -> dict[str, list[Event]]:
    files = sorted(path.glob(SELECTOR_EVENTS.format("*")))
    most = min(MOST_EVENTS["selection"], max(16, MOST_SELECTIONS // max(1, len(files))))
    selections = {}
    for file in files:
        follower, kept = Follower(file), FirstAndLast(most)
        for event in follower.stream():
            if event["kind"] == "selection":
                kept.add(event)
        notes += follower.notes
        selections[selector_of(file.name)] = kept.events()
    return selections


def _read_json(path: Path, notes: list[str]) -> Any:
    try:
        found = read_json(path)
    except FileNotFoundError:
        # A run that goes on has no summary yet: that is no fault.
        if path.name != SUMMARY:
            notes.append(f"{path.name} is missing")
        return {}
    except TooLongError:
        notes.append(f"{path.name} is longer than any run writes it, and left out")
        return {}
    except (OSError, ValueError):
        notes.append(f"{path.name} cannot be read")
        return {}
    if not isinstance(found, dict):
        notes.append(f"{path.name} does not hold what a run writes there")
    return found
