"""What steering decided after each of the last steps: the strength of leases, and how they treat wrong
labels. Under a logical clock a lease uses the decision of `lag` steps before its batch. Pure.
"""

from typing import Any

from sbpipe.config import Config
from sbpipe.trainer.stream.doubts import Doubt
from sbpipe.trainer.stream.moment import Moment


class Steered:
    """Strength and doubt by step, kept as long as a lease may use them."""

    def __init__(self, config: Config) -> None:
        self._lag = config.lag
        self._is_clocked = config.is_clocked
        self._strengths = {0: 1.0}
        self._doubts: dict[int, Doubt | None] = {}

    def begin(self, step: int, strength: float) -> None:
        """The strength of the leases before the next step."""
        self._strengths = {step: strength}

    def note(self, step: int, strength: float, doubt: Doubt | None) -> None:
        """Set what leases granted after this step use."""
        self._strengths[step], self._doubts[step] = strength, doubt
        self._strengths.pop(step - self._lag - 1, None)
        self._doubts.pop(step - self._lag - 1, None)

    def at(self, now: Moment) -> tuple[float, Doubt | None]:
        """What a lease granted now uses."""
        step = max(0, now.num_assembled - self._lag) if self._is_clocked else now.steps_done
        return self._strengths[step], self._doubts.get(step)

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {
            "strengths": dict(self._strengths),
            "doubts": {step: doubt and tuple(doubt) for step, doubt in self._doubts.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._strengths = dict(state["strengths"])
        self._doubts = {step: told and Doubt(*told) for step, told in state.get("doubts", {}).items()}
