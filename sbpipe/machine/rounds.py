"""Rounds: what a loop does on a device between two waits for a batch, put together from its stages.

A round begins where the loop has its batch and ends where it asks for the next one. Evaluations and
checkpoints are no part of it. It must not know how stages are timed, nor what they do.
"""

from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple


class Stage(NamedTuple):
    """What the host knew of a stage when it had queued it."""

    name: str
    queued_at: float
    """When it had queued all of it."""
    is_drained: bool
    """Whether the device had done it all by then."""
    begins_dry: bool
    """Whether the device had nothing left to do when a stage that waits began."""
    is_aside: bool
    """Whether it waits in the middle of a round."""


@dataclass
class Round:
    """What a device did between two waits for a batch; evaluations are left out."""

    begun_at: float
    """When the host began to launch it."""
    is_held: bool = False
    """Whether the device was held back before it."""
    is_dry: bool = False
    """Whether the device had nothing left to do at the end of a stage."""
    is_cut: bool = False
    """Whether what is left out lay in the middle of it: it does not tell who sets the pace, for the host
    waited for the device in there.
    """
    launching_s: float = 0.0
    """What the host took until it had launched the last stage."""
    behind_s: float = 0.0
    """How much later the device ended it."""
    lasted_s: float = 0.0
    """What the device took, from where the loop had its batch to where it asked for the next one."""
    stages_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Of that, by stage."""


class Rounds:
    """Puts stages together, in the order in which the device ends them, and hands on each whole round."""

    def __init__(
        self, waiting: Collection[str], left_out: Collection[str], note: Callable[[Round], None]
    ) -> None:
        self._waiting, self._left_out, self._note = waiting, left_out, note
        self._round: Round | None = None
        self._is_cutting = False
        """Whether something that is left out was added last."""

    def clear(self) -> None:
        """What was added belongs to nothing."""
        self._round = None

    def begin(self, at: float, *, is_held: bool) -> None:
        """A round begins here, not at the end of the stage that waited: the device may have slept since."""
        self._round, self._is_cutting = Round(at, is_held=is_held), False

    def add(self, stage: Stage, since_s: float, lasted_s: float, ended_at: float) -> None:
        """The device has ended a stage, which began so long after the one before.

        One that waits ends the round before it and begins the next one.
        """
        current = self._round
        if stage.name in self._waiting and not stage.is_aside:
            if current is not None and current.stages_s:
                # A device that was held back, and has nothing to do by now, was waited for.
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
        """So much of the time between the last two stages was work of another thread."""
        if self._round is not None:
            self._round.stages_s[name] += worked_s

    def end(self) -> None:
        """No wait has ended the last round, and none will."""
        if self._round is not None and self._round.stages_s:
            self._note(self._round)
            self._round = None
