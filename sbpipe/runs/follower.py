"""Reads what was added to a run's files since the last look, and says what is wrong with them. Only reads.

`RunFollower(path).look()` returns `News`: if it `is_anew`, forget what you know; take in its `events`, show
its `notes`, and look again at once if it `is_more`, or in half a second if not.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sbpipe.runs.line import Event as Event
from sbpipe.runs.line import event_of
from sbpipe.runs.names.files import (
    CONFIG,
    SELECTOR_EVENTS,
    TRAINER_EVENTS,
    TRAINER_RECENT,
    recent_of,
    selector_of,
)

CHUNK_BYTES = 1 << 20
"""Read at most this much of a file per look, so that memory stays bounded for a long backlog. A longer line
counts as damaged.
"""
TAIL_BYTES = 1 << 20
"""Only the end of a selector's file is read: the last few steps are all that is shown of it."""
_HEAD_BYTES = 96
"""The head of the first line, with its time stamp: a different head means that the file was replaced."""


@dataclass(frozen=True)
class News:
    """The result of one look."""

    events: list[Event] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Everything that is wrong right now, in words, not only what is new."""
    is_anew: bool = False
    """The files were replaced: forget the run so far; `events` begins from the start."""
    is_more: bool = False
    """There is more to read already."""


class Follower:
    """Reads a growing JSONL file a piece at a time; a line is read once its end is written."""

    def __init__(self, path: Path, *, tail_bytes: int | None = None) -> None:
        self.path = path
        self._tail_bytes = tail_bytes
        self._seen: tuple[int, int, int] | None = None
        self._forget()

    def _forget(self) -> None:
        self._offset = 0
        self._head = b""
        self._num_damaged = 0
        self._is_in_long_line = False
        self._is_cut = False
        self._is_empty = False
        self._is_missing = False

    def stream(self) -> Iterator[Event]:
        """Every whole event since the last look, one at a time, so that memory stays bounded."""
        while True:
            news = self.look()
            yield from news.events
            if not news.is_more:
                return

    def pass_over(self) -> None:
        """Skip everything that is there now."""
        for _ in self.stream():
            pass

    def new_events(self) -> list[Event]:
        """Every whole event since the last look; [] if there is no file yet."""
        events: list[Event] = []
        is_more = True
        while is_more:
            news = self.look()
            events, is_more = news.events if news.is_anew else events + news.events, news.is_more
        return events

    def look(self) -> News:
        """A bounded piece of the whole events since the last look."""
        try:
            status = self.path.stat()
            # Most looks find nothing new, and a stat costs less than opening the file.
            is_same = self._seen == (status.st_ino, status.st_size, status.st_mtime_ns)
            if is_same and not self._is_missing:
                return News(notes=self.notes)
            return self._read(status.st_size, (status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            # Gone since the last look, perhaps briefly: an overwritten run has no file until it begins.
            was_there = self._head != b""
            self._forget()
            self._is_missing = True
            return News(notes=self.notes, is_anew=was_there)

    def _read(self, size: int, seen: tuple[int, int, int]) -> News:
        with self.path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            # A resume appends; --overwrite makes a new file, which may already be longer than what was read.
            is_anew = size < self._offset or not head.startswith(self._head)
            if is_anew:
                self._forget()
            is_tail = self._head == b"" and self._tail_bytes is not None and size > self._tail_bytes
            if is_tail and self._tail_bytes is not None:
                self._offset = size - self._tail_bytes
            file.seek(self._offset)
            # Ask for no more than there is: allocating a whole piece at every look fragments the heap.
            data = file.read(min(CHUNK_BYTES, max(0, size - self._offset)))
            if is_tail:
                begin = data.find(b"\n") + 1  # the first line of a tail has lost its beginning
                self._offset, data = self._offset + begin, data[begin:]
        begin = self._offset
        whole, rest = self._cut(data)
        is_more = begin + len(data) < size
        self._head, self._is_missing, self._is_empty, self._is_cut = (
            head,
            False,
            size == 0,
            bool(rest) and not is_more,
        )
        self._seen = None if is_more else seen
        return News(list(self._parse(whole)), self.notes, is_anew, is_more)

    def _cut(self, data: bytes) -> tuple[bytes, bytes]:
        """The whole lines of a piece, and the rest after the last newline, which waits for the next look."""
        if self._is_in_long_line:
            end = data.find(b"\n") + 1
            self._is_in_long_line = end == 0
            passed = end or len(data)
            self._offset, data = self._offset + passed, data[passed:]
        whole, newline, rest = data.rpartition(b"\n")
        if not newline and len(data) >= CHUNK_BYTES:
            self._num_damaged += 1
            self._is_in_long_line, rest = True, b""
            self._offset += len(data)
        self._offset += len(whole) + len(newline)
        return whole, rest

    def _parse(self, whole: bytes) -> Iterator[Event]:
        # Not `splitlines`: it also splits at other characters, which a damaged line may hold.
        for line in whole.split(b"\n") if whole else ():
            event = event_of(line)
            if event is not None:
                yield event
            elif line:
                self._num_damaged += 1

    @property
    def notes(self) -> list[str]:
        """What is wrong with the file right now, in words."""
        name = self.path.name
        notes = []
        if self._is_missing:
            notes.append(f"{name} is missing: the run has not begun, or its files were moved")
        if self._is_empty:
            notes.append(f"{name} is empty: nothing has happened yet")
        if self._num_damaged:
            notes.append(
                f"{name}: {self._num_damaged} damaged "
                f"{'line was' if self._num_damaged == 1 else 'lines were'} left out"
            )
        if self._is_cut:
            notes.append(f"{name}: the last line is cut (a write in progress, or a kill)")
        return notes


class TrainerFollower:
    """Follows both files of a trainer, lasting events and passing ones, to show a run while it goes on."""

    def __init__(self, run: Path) -> None:
        # In this order: when a run ends, the lasting events must come last.
        self._followers = (Follower(run / TRAINER_RECENT), Follower(run / TRAINER_EVENTS))

    def pass_over(self) -> None:
        """Skip everything that is there now."""
        for follower in self._followers:
            follower.pass_over()

    def new_events(self) -> list[Event]:
        """Every event since the last look."""
        return [event for follower in self._followers for event in follower.new_events()]


class RunFollower:
    """Follows the events of one run directory: the trainer's whole file, and the end of each selector's.

    Files of passing events are followed too, if they are there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._trainer = Follower(path / TRAINER_EVENTS)
        self._recent = Follower(path / TRAINER_RECENT)
        self._selectors: dict[Path, Follower] = {}
        self._recents: dict[Path, Follower] = {}

    def look(self) -> News:
        """New events: the trainer's first, each file's in order; a selector's events name the selector."""
        if not self.path.is_dir():
            return News(notes=[f"{self.path} is gone"], is_anew=self._trainer.look().is_anew)
        if not any(self.path.iterdir()):
            return News(
                notes=["the directory is empty: no run has begun here yet"],
                is_anew=self._trainer.look().is_anew,
            )
        trainer = self._trainer.look()
        # An overwritten run has new selectors, whose files have other names.
        if trainer.is_anew:
            self._selectors, self._recents = {}, {}
        for file in sorted(self.path.glob(SELECTOR_EVENTS.format("*"))):
            self._selectors.setdefault(file, Follower(file, tail_bytes=TAIL_BYTES))
            recent = file.with_name(recent_of(file.name))
            self._recents.setdefault(recent, Follower(recent))
        looks = [(selector_of(file.name), follower.look()) for file, follower in self._selectors.items()]
        recents = [(selector_of(file.name), follower.look()) for file, follower in self._recents.items()]
        selectors = [news for _, news in looks]
        return News(
            events=[
                *trainer.events,
                # Only once the rest is read: passing events tell what happens now, and come last.
                *(self._recent.look().events if not trainer.is_more else ()),
                *({"selector": name} | event for name, news in (*looks, *recents) for event in news.events),
            ],
            notes=[*self._own_notes(), *trainer.notes, *(note for news in selectors for note in news.notes)],
            is_anew=trainer.is_anew,
            is_more=trainer.is_more or any(news.is_more for news in selectors),
        )

    def _own_notes(self) -> list[str]:
        try:
            if (self.path / CONFIG).stat().st_size == 0:
                return [f"{CONFIG} is empty: it was cut while being written"]
        except FileNotFoundError:
            return [f"{CONFIG} is missing"]
        except OSError as error:
            return [f"{CONFIG} cannot be read ({error.strerror})"]
        return []
