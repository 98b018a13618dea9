"""Handles the death of a trainer: it is restarted from the last checkpoint, as often as the budget allows.

With several ranks torchrun is the trainer here: the ranks live and die together. Selectors keep running, and
find the new trainer by themselves.
"""

from sbpipe.process.child import Child, ChildFailed
from sbpipe.process.crew import Crew
from sbpipe.process.restarts import FINAL, Budget
from sbpipe.process.standing import Standing
from sbpipe.show.terminal import Display

_BUG = 1
"""The exit code of Python after a traceback."""


class TrainerCare:
    """Looks after the trainer of a run; a newer checkpoint resets its count of deaths."""

    def __init__(self, crew: Crew, standing: Standing, most: int, display: Display) -> None:
        self._crew, self._standing, self._display = crew, standing, display
        self._budget = Budget(most)
        self._step = standing.step
        self._restart_at = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the run is over: its code says so, or it was killed after it had finished."""
        code = self._crew.trainer.code
        return code == 0 or (code is not None and code < 0 and self._standing.is_finished)

    def look(self, now: float) -> bool:
        """Restart a dead trainer; returns whether it was restarted now. Raises if a restart cannot help."""
        has_begun = self._standing.has_begun
        self._standing.write_deaths()
        if self._restart_at:
            if now < self._restart_at:
                return False
            self._start_again(has_begun)
            return True
        if self._crew.trainer.code not in (None, 0) and not self.is_over:
            self._plan_restart(self._crew.trainer, now)
        return False

    def _plan_restart(self, dead: Child, now: float) -> None:
        step = self._standing.step
        # An exception before the run began (say in the user's data or model) would be raised again.
        is_early_bug = dead.code == _BUG and not dead.is_launcher and not self._standing.has_begun
        if dead.code in FINAL or is_early_bug:
            raise ChildFailed(dead)
        if not self._budget.grant(is_forgiven=step > self._step):
            after = (
                f" (after {self._budget.most} restarts without a new checkpoint)" if self._budget.most else ""
            )
            raise ChildFailed(dead, after)
        self._step = step
        whence = (
            f"from the checkpoint of step {step}"
            if step >= 0
            else "from the beginning: it had no checkpoint yet"
        )
        self._display.say(
            f"the {dead.role} ended with code {dead.code}; starting it again {whence} "
            f"(restart {self._budget} in a row; its log: {dead.log})"
        )
        self._standing.record_death(dead.role, dead.code)
        self._restart_at = now + self._budget.delay_s

    def _start_again(self, has_begun: bool) -> None:
        self._restart_at = 0.0
        self._crew.renew(has_begun)
        self._crew.trainer.start()
        # A selector that was told the run is over ended with code 0, and is needed again.
        for child in self._crew.selectors:
            if child.code == 0:
                child.start()
