"""Handles the death of a selector: it is restarted, and given up only if restarts do not help.

When the last one is given up, the run ends only if the trainer may not go on alone.
"""

from collections.abc import Callable
from typing import Protocol

from sbpipe.config import Config
from sbpipe.errors import UserError
from sbpipe.process.child import Child, ChildFailed
from sbpipe.process.restarts import Budget
from sbpipe.process.standing import Standing


class Says(Protocol):
    """Shows the user a line: a terminal, or a log."""

    def say(self, text: str) -> None:
        """Show it."""
        ...


MAX_RESTARTS = 5
# A selector that got this far does not crash at its start, so its deaths are counted from 0 again.
_FORGIVEN_AFTER_S = 300.0
_FORGIVEN_AFTER_ANSWERS = 20


class SelectorCare:
    """Looks after the selectors of a run; `num_answered` tells how many leases a process has answered."""

    def __init__(
        self,
        config: Config,
        selectors: list[Child],
        standing: Standing,
        num_answered: Callable[[int], int],
        display: Says,
    ) -> None:
        self._config, self._selectors, self._standing = config, selectors, standing
        self._num_answered, self._display = num_answered, display
        self._budgets = {child.role: Budget(MAX_RESTARTS) for child in selectors}
        self.was_ready = False
        """Whether any of them has ever served the trainer."""

    def look(self, now: float) -> None:
        """Restart the selectors that have died. Raises if none is left and the run needs one."""
        for child in self._selectors:
            if child.code in (None, 0) or child.is_given_up:
                continue
            if not child.restart_at:
                self._died(child, now)
            elif now >= child.restart_at:
                child.start()

    def _died(self, child: Child, now: float) -> None:
        budget = self._budgets[child.role]
        # After a user's mistake a restart would end in the same way.
        is_mistake = child.code == UserError.exit_code
        if is_mistake or not budget.grant(is_forgiven=self._got_far(child, now)):
            self._give_up(child, is_mistake=is_mistake)
            return
        self._display.say(
            f"the {child.role} ended with code {child.code}; starting it again (restart {budget} in a row; "
            f"its log: {child.log})"
        )
        self._standing.record_death(child.role, child.code)
        child.restart_at = now + budget.delay_s

    def _got_far(self, child: Child, now: float) -> bool:
        assert child.process is not None
        return (
            now - child.started_at > _FORGIVEN_AFTER_S
            or self._num_answered(child.process.pid) >= _FORGIVEN_AFTER_ANSWERS
        )

    def _give_up(self, child: Child, *, is_mistake: bool) -> None:
        child.is_given_up = True
        others = [other for other in self._selectors if not other.is_given_up]
        # No selector has served yet, and a mistake is quickly fixed: better now than after the run.
        is_early = is_mistake and not self.was_ready
        if is_early or not (others or self._may_go_alone()):
            raise ChildFailed(child)
        left = f"{len(others)} selector(s) are left" if others else "batches are filled without scores"
        self._display.say(
            f"warning: the {child.role} ended with code {child.code} and is given up; training goes on, "
            f"{left} (its log: {child.log})"
        )
        self._standing.record_death(child.role, child.code, is_given_up=True)

    def _may_go_alone(self) -> bool:
        """Whether `selection.late` and `selection.fallback` let the trainer go on without a selector."""
        config = self._config
        if config.needs_a_selector:
            return False
        # Without fills the trainer falls back on scores, and needs those of a selector that served once.
        return config.fills or self.was_ready
