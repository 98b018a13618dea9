"""Rounds: the work of a loop on a device between two waits for a batch, put together from its stages.

A round begins where the loop has its batch, and ends where it asks for the next one. Evaluations and
checkpoints do not belong to it. It must not know how stages are timed, nor what they do.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple


class Stage(NamedTuple):
    """What the host knew of a stage when it had queued it."""

    name: str
    queued_at: float
    """When the host had queued all of it."""
    is_drained: bool
    """Whether the device had finished all of it by then."""
    begins_dry: bool
    """For a stage that waits: whether the device had nothing left to do when it began."""
    is_aside: bool
    """Whether it is a wait in the middle of a round."""


@dataclass
class Round:
    """The work of a device between two waits for a batch, without evaluations."""

    begun_at: float
    """When the host began to launch it."""
    is_held: bool = False
    """Whether the device was held back before it."""
    is_dry: bool = False
    """Whether the device had nothing left to do at the end of a stage."""
    is_cut: bool = False
    """Whether a left-out stage lay in the middle of it. The host waited for the device there, so the round
    does not tell which of them sets the pace.
    """
    launching_s: float = 0.0
    """The host's time until it had launched the last stage."""
    behind_s: float = 0.0
    """How much later than the host the device finished it."""
    lasted_s: float = 0.0
    """The device's time, from where the loop had its batch to where it asked for the next one."""
    stages_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The part of it in each stage."""


class Rounds:
    """Puts stages together, in the order in which the device finishes them, and passes on whole rounds."""

    def __init__(
        self, waiting: Collection[str], left_out: Collection[str], note: Callable[[Round], None]
    ) -> None:
        self._waiting, self._left_out, self._note = waiting, left_out, note
        self._round: Round | None = None
        self._is_cutting = False
        """Whether the last added stage is left out."""

    def clear(self) -> None:
        """Forget the current round."""
        self._round = None

    def begin(self, at: float, *, is_held: bool) -> None:
        """A round begins here, not at the end of the stage that waited: the device may have slept since."""
        self._round, self._is_cutting = Round(at, is_held=is_held), False

    def add(self, stage: Stage, since_s: float, lasted_s: float, ended_at: float) -> None:
        """The device has finished a stage, which began `since_s` after the previous one.

        A stage that waits ends the round before it, and begins the next one.
        """
        current = self._round
        if stage.name in self._waiting and not stage.is_aside:
            if current is not None and current.stages_s:
                # The host waited for a device that was held back and has nothing left to do.
                current.lasted_s += 0.0 if current.is_held and stage.begins_dry else since_s
                self._note(current)
            self.begin(stage.queued_at, is_held=False)
        elif current is not None:
            current.lasted_s += since_s
            if stage.is_aside or stage.name in self._left_out:
                self._is_cutting = True
                return
            current.is_cut |= self._is_cutting
            current.lasted_s += lasted_s
            current.stages_s[stage.name] += lasted_s
            current.is_dry |= stage.is_drained
            current.launching_s = stage.queued_at - current.begun_at
            current.behind_s = ended_at - stage.queued_at

    def add_beside(self, name: str, worked_s: float) -> None:
        """`worked_s` of the time between the last two stages was work of another thread."""
        if self._round is not None:
            self._round.stages_s[name] += worked_s

    def end(self) -> None:
        """End the last round, which no further wait will end."""
        if self._round is not None and self._round.stages_s:
            self._note(self._round)
            self._round = None
