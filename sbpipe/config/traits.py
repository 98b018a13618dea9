"""The policies there are, and what the settings and the roles must know of each before one is built.

It must not know how a policy chooses: that stands in `selection/`, whose classes take their traits from here.
"""

from dataclasses import dataclass
from typing import NamedTuple


class KeepBounds(NamedTuple):
    """Between what shares to keep `selection.keep = "auto"` moves."""

    least: float
    """Where few candidates do most of the pulling at the model: no lower than their effective share."""
    usual: float
    """The least where it is not known how few do, or where they are more."""
    most: float

    def least_at(self, effective: float | None) -> float:
        """The least where this share of the candidates does the pulling; None = not known."""
        return self.usual if effective is None else min(self.usual, max(self.least, effective))


@dataclass(frozen=True)
class Traits:
    """What sets one policy apart from another, for whoever is not the policy itself."""

    needs_scores: bool = True
    """Whether candidates must be scored at all; if not, scores travel as NaN and nobody needs weights."""
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
    """Shares to keep that it was seen to be good at; None = only what one sets."""
    keep_start: float = 1 / 3
    """The share that `selection.keep = "auto"` means until a run has measured, and where it never does."""


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
    """Whether the policy that some run's files name trains on everything; an unknown one does not."""
    return isinstance(policy, str) and TRAITS.get(policy, Traits()).keeps_all
