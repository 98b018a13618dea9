"""When a role that died is started again: forgive first, then count. Pure; starts nothing, knows no clock."""

from dataclasses import dataclass

from sbpipe.errors import PeerError, ResultsElsewhere, ResultsLost, UserError

FINAL = {
    0,
    130,
    *(kind.exit_code for kind in (UserError, PeerError, ResultsElsewhere, ResultsLost)),
}
"""Exit codes of a trainer that ended for good: the next one would end in the same way, or it was stopped."""
_LONGEST_DELAY_S = 30.0


@dataclass
class Budget:
    """Restarts in a row that a role may need; one that got somewhere in between begins a new row."""

    most: int
    in_a_row: int = 0

    def grant(self, *, is_forgiven: bool) -> bool:
        """The role has died; whether it is started again. `is_forgiven`: it got somewhere since last time."""
        if is_forgiven:
            self.in_a_row = 0
        if self.in_a_row >= self.most:
            return False
        self.in_a_row += 1
        return True

    @property
    def delay_s(self) -> float:
        """How long the restart just granted should wait: the first one does not."""
        return min(float(self.in_a_row - 1), _LONGEST_DELAY_S)

    def __str__(self) -> str:
        return f"{self.in_a_row} of {self.most}"
