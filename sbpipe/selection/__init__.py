"""From scores to kept candidates. One file per policy; this is the one dict from config name to class."""

from dataclasses import replace

from sbpipe.config import SelectionConfig
from sbpipe.selection.balance import ClassBalance
from sbpipe.selection.floor import is_due
from sbpipe.selection.outliers import OutlierGuard
from sbpipe.selection.policies.infobatch import InfoBatch, TrainedLosses
from sbpipe.selection.policies.kath18 import Kath18
from sbpipe.selection.policies.rank import Rank
from sbpipe.selection.policies.rho import Rho
from sbpipe.selection.policies.sb import SelectiveBackprop
from sbpipe.selection.policies.shuffled import Shuffled
from sbpipe.selection.policies.spread import Spread
from sbpipe.selection.policies.steady import Steady
from sbpipe.selection.policies.topk import TopK
from sbpipe.selection.policies.uniform import Full, Random
from sbpipe.selection.policy import Policy, SetPolicy, choose, coins, drawn, set_coins
from sbpipe.selection.reuse import ScoreCache

POLICIES: dict[str, type[Policy]] = {
    "full": Full,
    "infobatch": InfoBatch,
    "kath18": Kath18,
    "random": Random,
    "rank": Rank,
    "rho": Rho,
    "sb": SelectiveBackprop,
    "shuffled": Shuffled,
    "spread": Spread,
    "steady": Steady,
    "topk": TopK,
}


def build_policy(config: SelectionConfig) -> Policy:
    """The policy that the config names, wrapped in class balance and an outlier guard where it
    asks for them.
    """
    kind, has_guard = POLICIES[config.policy], config.outliers != "keep"
    if not kind.traits.needs_scores:
        return kind(config)
    ranks_by_class = kind.traits.ranks_by_class and not has_guard
    if config.history_by == "all" or ranks_by_class:
        return OutlierGuard(kind(config), config) if has_guard else kind(config)
    # Outliers are cut after balancing: if they were cut among all scores, the highest scores of a hard class
    # would become its lowest.
    return ClassBalance(build_policy(replace(config, history_by="all")), config)


__all__ = [
    "POLICIES",
    "Policy",
    "ScoreCache",
    "SetPolicy",
    "TrainedLosses",
    "build_policy",
    "choose",
    "coins",
    "drawn",
    "is_due",
    "set_coins",
]
