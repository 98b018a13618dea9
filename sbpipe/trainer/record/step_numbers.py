"""The numbers of one step, from its batch and its fresh losses. Pure and cheap: it may run in the loop."""

from typing import NamedTuple

import numpy as np

from sbpipe.records import Ids
from sbpipe.selection.fidelity import mean_error, spearman
from sbpipe.trainer.step_outcome import StepOutcome


class StepNumbers(NamedTuple):
    """Sums over a batch. Fills were not scored: they have neither age nor fidelity."""

    step: int
    candidates: int
    loss: float
    rate: float
    keep_probability: float
    trained: int
    filled: int
    staleness: Ids
    """At index k, the number of selected examples that are k steps stale."""
    staleness_sum: int
    fast_sum: int
    age_sum: int
    queue_sum: int
    spearman: float | None
    score_error: float | None

    @property
    def selected(self) -> int:
        """Examples that a selector chose."""
        return self.trained - self.filled

    @property
    def staleness_max(self) -> int | None:
        """The largest; None where all was filled in."""
        return len(self.staleness) - 1 if self.selected else None


def numbers_of(outcome: StepOutcome, rate: float) -> StepNumbers:
    """The numbers of a step."""
    batch, losses = outcome.batch, outcome.losses
    trained, filled = len(batch.is_fill), int(np.count_nonzero(batch.is_fill))
    version, fast, arrived = batch.version, batch.fast_version, batch.arrived_at_step
    if filled:
        is_selected = ~batch.is_fill
        version, arrived = version[is_selected], arrived[is_selected]
        fast = None if fast is None else fast[is_selected]
    now = batch.step * len(version)
    versions, arrivals = _sum(version), _sum(arrived)
    agreement = spearman(batch.scores, losses)
    is_known = agreement == agreement  # not NaN
    return StepNumbers(
        step=batch.step,
        candidates=batch.candidates,
        loss=outcome.mean_loss,
        rate=rate,
        keep_probability=float(np.add.reduce(batch.keep_probability)) / trained,
        trained=trained,
        filled=filled,
        staleness=np.bincount(np.maximum(batch.step - version, 0)),
        staleness_sum=now - versions,
        fast_sum=now - (versions if fast is None else _sum(fast)),
        age_sum=arrivals - versions,
        queue_sum=now - arrivals,
        spearman=agreement if is_known else None,
        score_error=mean_error(batch.scores, losses) if is_known else None,
    )


def _sum(numbers: Ids) -> int:
    # For small arrays `sum` and `mean` spend most of their time on the way to this call.
    return int(np.add.reduce(numbers))
