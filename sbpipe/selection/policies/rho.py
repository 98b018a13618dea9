"""`rho`: what is worth learning and not yet learnt, by loss less irreducible loss (Mindermann et al.
2022).
"""

from dataclasses import replace

from sbpipe.selection.policies.topk import TopK


class Rho(TopK):
    """`topk` of reducible losses: whoever scores has subtracted each candidate's irreducible loss
    (`selection.irreducible`) before.

    So a policy sees numbers as ever, and differences are what a new selector takes over; the scores that
    travel stay losses.
    """

    traits = replace(TopK.traits, needs_irreducible=True)
