"""`rho`: loss less irreducible loss, what is worth learning and not yet learnt (Mindermann et al. 2022)."""

from sbpipe.config import TRAITS
from sbpipe.selection.policies.topk import TopK


class Rho(TopK):
    """`topk` of reducible losses.

    The judge subtracts each candidate's irreducible loss (`selection.irreducible`) first, so the policy sees,
    and a new selector takes over, differences; the scores that travel stay losses.
    """

    traits = TRAITS["rho"]
