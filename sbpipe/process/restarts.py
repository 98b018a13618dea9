"""Whether a dead role is restarted: progress resets the count first. Pure; starts nothing, knows no clock."""

from dataclasses import dataclass

from sbpipe.errors import PeerError, ResultsElsewhere, ResultsLost, UserError

FINAL = {
    0,
    130,
    *(kind.exit_code for kind in (UserError, PeerError, ResultsElsewhere, ResultsLost)),
}
"""Exit codes after which a trainer is not restarted: it was stopped, or would end in the same way again."""
_LONGEST_DELAY_S = 30.0


@dataclass
class Budget:
    """How many restarts in a row a role may have; progress in between starts a new row."""

    most: int
    in_a_row: int = 0

    def grant(self, *, is_forgiven: bool) -> bool:
        """Whether a dead role is restarted. `is_forgiven`: it made progress since its last death."""
        if is_forgiven:
            self.in_a_row = 0
        if self.in_a_row >= self.most:
            return False
        self.in_a_row += 1
        return True

    @property
    def delay_s(self) -> float:
        """How long the restart just granted should wait; the first one does not wait."""
        return min(float(self.in_a_row - 1), _LONGEST_DELAY_S)

    def __str__(self) -> str:
        return f"{self.in_a_row} of {self.most}"
