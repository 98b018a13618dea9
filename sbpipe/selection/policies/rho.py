"""`rho`: loss minus irreducible loss, what can still be learnt (Mindermann et al. 2022)."""

from sbpipe.config import TRAITS
from sbpipe.selection.policies.topk import TopK


class Rho(TopK):
    """`topk` of reducible losses.

    The judge first subtracts each candidate's irreducible loss (`selection.irreducible`). So the policy sees
    differences, and a new selector takes over a history of differences; the scores that are sent stay losses.
    """

    traits = TRAITS["rho"]
