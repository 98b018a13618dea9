"""From scores to kept candidates. One file per policy; this is the one dict from config name to class."""

from sbpipe.config import SelectionConfig
from sbpipe.selection.policy import Policy, choose, coins
from sbpipe.selection.sb import SelectiveBackprop
from sbpipe.selection.shuffled import Shuffled
from sbpipe.selection.steady import Steady
from sbpipe.selection.uniform import Full, Random

POLICIES: dict[str, type[Policy]] = {
    "full": Full,
    "random": Random,
    "sb": SelectiveBackprop,
    "shuffled": Shuffled,
    "steady": Steady,
}


def build_policy(config: SelectionConfig) -> Policy:
    """The policy the config names."""
    return POLICIES[config.policy](config)


__all__ = ["POLICIES", "Policy", "build_policy", "choose", "coins"]
