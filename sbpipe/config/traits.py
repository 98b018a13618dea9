"""What the settings and the roles must know of a policy before one is built. The policies' classes hold it.

It must not know the policies: which there are, and what is true of each, is told in `selection/`.
"""

from dataclasses import dataclass


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
    """Whether the trainer sets its strength (ramp, guard) and weighs its choice by fresh losses."""
    ranks_by_class: bool = False
    """Whether it can rank a score among those of its own class without help."""


def traits_of(policy: str) -> Traits:
    """The traits of the policy that the settings name."""
    # Not at the top of the file: policies are built from settings, so their room imports this one, and numpy,
    # which `--help` must not wait for.
    from sbpipe.selection import POLICIES

    return POLICIES[policy].traits


def keeps_all(policy: object) -> bool:
    """Whether the policy that some run's files name trains on everything; an unknown one does not."""
    from sbpipe.selection import POLICIES

    return policy in POLICIES and traits_of(str(policy)).keeps_all
