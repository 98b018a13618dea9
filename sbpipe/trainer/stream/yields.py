"""The yield of selection: how many candidates are kept, at which rate, and whether it has dried up. Pure."""

from typing import Any

from sbpipe.config import Config
from sbpipe.errors import UserError

STARVED_AFTER = 100
"""Expected kept examples after which their absence is an error; at least a whole epoch of candidates."""
LONG_ENOUGH = 2**24
"""Candidates that count as a whole epoch of a larger data set."""
_MOST_WEIGHT, _MEMORY = 0.5, 2000.0
"""A lease counts for the rate by its share of the last 2,000 candidates, at most by half."""


class StarvedError(UserError):
    """Selection keeps nothing any more, so no train batch will ever be whole."""


class Yield:
    """Counts candidates and kept examples."""

    def __init__(self, config: Config, num_examples: int) -> None:
        selection, bounds = config.selection, config.keep_bounds
        an_epoch = min(num_examples, LONG_ENOUGH)
        self._patience = max(an_epoch, STARVED_AFTER / (bounds.least if bounds else selection.keep_rate))
        self._since_kept = 0
        self.num_kept = 0
        self.rate = selection.keep_rate
        """The share of candidates kept recently, by which the length of the next lease is planned."""

    def fill(self, kept: int) -> None:
        """Count filled examples: they say nothing about the yield of selection."""
        self.num_kept += kept

    def aim(self, factor: float) -> None:
        """The keep rate that leases aim at is about to change by `factor`."""
        self.rate = min(1.0, self.rate * factor)

    def count(self, considered: int, kept: int, *, is_selected: bool) -> None:
        """Take in the answer to a lease; only real choices count for the rate. Raises if nothing is kept any
        more.
        """
        self.num_kept += kept
        self._since_kept = 0 if kept else self._since_kept + considered
        if self._since_kept > self._patience:
            raise StarvedError(
                f"none of the last {self._since_kept} candidates was kept: their scores are not finite, or "
                "all alike. Check the data, lower optim.lr, or score in fp32 (selector.precision)"
            )
        if is_selected:
            weight = min(_MOST_WEIGHT, considered / _MEMORY)
            self.rate += weight * (kept / considered - self.rate)

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"num_kept": self.num_kept, "rate": self.rate}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.num_kept, self.rate = state["num_kept"], state["rate"]
