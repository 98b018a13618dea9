"""All policies, and what the settings and the roles must know of each before it is built.

It must not know how a policy chooses: that stands in `selection/`, whose classes take their traits from here.
"""

from dataclasses import dataclass
from typing import NamedTuple


class KeepBounds(NamedTuple):
    """The bounds of the keep rate under `selection.keep = "auto"`."""

    least: float
    """The least if few candidates dominate the gradient; it is never below their effective share."""
    usual: float
    """The least if their effective share is unknown, or larger."""
    most: float

    def least_at(self, effective: float | None) -> float:
        """The least for this effective share of the candidates; None = unknown."""
        return self.usual if effective is None else min(self.usual, max(self.least, effective))


@dataclass(frozen=True)
class Traits:
    """The properties of a policy that other code must know."""

    needs_scores: bool = True
    """Whether candidates must be scored at all; if not, scores travel as NaN, and no weights are needed."""
    needs_trained_losses: bool = False
    """Whether it judges by the losses of the trainer's own steps, so that both roles must be one process."""
    needs_irreducible: bool = False
    """Whether each candidate's irreducible loss is subtracted from its score."""
    keeps_all: bool = False
    """Whether every candidate is kept, whatever `selection.keep` says."""
    has_chances: bool = True
    """Whether every candidate has a chance to be kept, so that weights can undo the choice on average."""
    has_own_weights: bool = False
    """Whether its kept examples weigh 1 / chance by definition."""
    is_steered: bool = False
    """Whether the trainer sets its strength: 0 = it chooses uniformly."""
    sharpens_by_loss: bool = False
    """Whether a higher score alone makes it keep, so that it needs a ramp and weights from fresh losses."""
    chooses_sets: bool = False
    """Whether it chooses among all candidates of a lease at once, by their residuals, without a history."""
    ranks_by_class: bool = False
    """Whether it can rank a score among those of its own class without help."""
    keep_bounds: KeepBounds | None = None
    """Keep rates at which it was seen to work; None = only the set one."""
    keep_start: float = 1 / 3
    """The keep rate under `selection.keep = "auto"` before a run has measured, or if it never measures."""


# Here, and not only on the classes that point here: settings are checked before a role has chosen its cores,
# and the classes bring numpy, whose threads are as many as the cores are when it is imported.
TRAITS = {
    "full": Traits(needs_scores=False, keeps_all=True),
    "infobatch": Traits(needs_scores=False, needs_trained_losses=True, has_own_weights=True),
    "kath18": Traits(),
    "random": Traits(needs_scores=False),
    "rank": Traits(),
    "rho": Traits(needs_irreducible=True, has_chances=False),
    "sb": Traits(ranks_by_class=True),
    "shuffled": Traits(ranks_by_class=True),
    "spread": Traits(
        has_chances=False,
        is_steered=True,
        chooses_sets=True,
        keep_bounds=KeepBounds(1 / 8, 1 / 4, 1 / 2),
        keep_start=1 / 4,
    ),
    "steady": Traits(
        ranks_by_class=True,
        is_steered=True,
        sharpens_by_loss=True,
        keep_bounds=KeepBounds(1 / 4, 1 / 4, 1 / 2),
    ),
    "topk": Traits(has_chances=False),
}
"""Every policy by its name in the settings; `selection.POLICIES` has its class."""


def keeps_all(policy: object) -> bool:
    """Whether the policy named in a run's files trains on everything; an unknown one does not."""
    return isinstance(policy, str) and TRAITS.get(policy, Traits()).keeps_all
