"""What must hold between settings. Each rule is a pure function of the config and knows no other."""

import re
from collections.abc import Callable

from sbpipe.config.schema import Config
from sbpipe.errors import ConfigError

_DEVICE = re.compile(r"[a-z]+(:\d+)?")

Rule = Callable[[Config], ConfigError | None]


def check_together(config: Config) -> None:
    """Refuse settings that cannot be met together."""
    for rule in RULES:
        if error := rule(config):
            raise error


def least_staleness(config: Config) -> int:
    """The smallest `sync.max_staleness` that the mode, depth, lag and interval can promise."""
    if config.mode not in ("pipelined", "fixed-lag"):
        return 0
    # Scored that many batches ahead, with weights that may be interval - 1 steps older than the newest.
    # What is "auto" stays within the bound, and begins with these.
    ahead = config.sync.lag if config.mode == "fixed-lag" else config.sync_depth
    return ahead + config.sync_interval - 1


# --- the clock and the wire -----------------------------------------------------------------------


def staleness_can_be_met(config: Config) -> ConfigError | None:
    """The bound on staleness is one that the depth or lag leaves room for."""
    bound, least = config.sync.max_staleness, least_staleness(config)
    if not bound or bound >= least:
        return None
    ahead = "sync.lag" if config.mode == "fixed-lag" else "sync.depth"
    reason = f"cannot be met with {ahead} and sync.interval = {config.sync.interval}"
    way_out = f"Set it to at least {least}, or lower {ahead} or sync.interval"
    return ConfigError("sync.max_staleness", bound, reason, way_out)


def run_has_one_end(config: Config) -> ConfigError | None:
    """Steps or seconds end a run, not both."""
    if not (config.train.steps and config.train.seconds):
        return None
    reason = f"train.steps = {config.train.steps} is set too"
    return ConfigError("train.seconds", config.train.seconds, reason, "Set only one of them")


def heartbeat_outpaces_loss(config: Config) -> ConfigError | None:
    """One heartbeat may be late without its peer counting as lost."""
    if config.link.heartbeat_s * 2 <= config.link.lost_after_s:
        return None
    reason = f"a peer is lost after {config.link.lost_after_s} s of silence (link.lost_after_s)"
    return ConfigError(
        "link.heartbeat_s", config.link.heartbeat_s, reason, "Set it to less than half of that"
    )


def lockstep_publishes_exactly(config: Config) -> ConfigError | None:
    """Lockstep equals one process bit for bit, so its weights travel as they are."""
    if config.mode != "lockstep" or config.sync.dtype == "fp32":
        return None
    reason, way_out = "lockstep promises bit-equal scores", "Set sync.dtype = 'fp32'"
    return ConfigError("sync.dtype", config.sync.dtype, reason, way_out)


def direct_weights_have_a_way(config: Config) -> ConfigError | None:
    """Direct copies between devices need two such devices, marks in shared memory, and an unsharded model."""
    if not config.sync.direct or config.is_one_process:
        return None
    if not config.sync.shared_memory:
        reason = "marks and handles lie in shared memory, and sync.shared_memory = false"
        return ConfigError("sync.direct", True, reason, "Set it to false, or sync.shared_memory to true")
    if config.train.shard != "none" and config.num_ranks > 1:
        reason = "each rank holds a share of the weights (train.shard = 'full'): the host gathers them"
        return ConfigError("sync.direct", True, reason, "Set it to false, or train.shard to another value")
    named = {"train.device": [config.train.device], "selector.device": config.selector.devices}
    for key, names in named.items():
        for name in names:
            if name != "auto" and name.partition(":")[0] != "cuda":
                reason = f"it is for CUDA devices, and {key} names '{name}'"
                return ConfigError("sync.direct", True, reason, f"Set it to false, or {key} to a CUDA device")
    return None


# --- data and devices -----------------------------------------------------------------------------


def pruning_has_scores(config: Config) -> ConfigError | None:
    """Examples are left out by a score file."""
    if not config.data.prune_share or config.data.prune:
        return None
    reason = "there is no score file to tell which examples"
    way_out = "Set data.prune to a file made by `sbpipe score el2n`"
    return ConfigError("data.prune_share", config.data.prune_share, reason, way_out)


def shards_can_be_scaled(config: Config) -> ConfigError | None:
    """Ranks that hold shares of the gradient see different overflows, and would skip different steps."""
    if config.train.shard == "none" or config.train.amp != "fp16":
        return None
    reason = "with train.amp = 'fp16' each rank would judge overflows by its own share of the gradient"
    return ConfigError("train.shard", config.train.shard, reason, "Set train.amp = 'bf16'")


def devices_are_names(config: Config) -> ConfigError | None:
    """Names of devices are well-formed, and `auto` is not among several."""
    given, names = config.selector.device, config.selector.devices
    if strange := [name for name in names if not _DEVICE.fullmatch(name)]:
        reason = f"{strange[0]!r} is not a device name"
        return ConfigError(
            "selector.device", given, reason, "Write for instance cpu, cuda:1 or cuda:1,cuda:2"
        )
    if len(names) > 1 and "auto" in names:
        reason = "which device 'auto' means beside others is not known"
        return ConfigError("selector.device", given, reason, "Name them all, or none")
    return None


def batch_can_be_cut(config: Config) -> ConfigError | None:
    """The parts of a batch have examples, and nothing that must see the whole batch first."""
    parts, own, traits = config.train.accumulate, config.selection, config.selection.traits
    if parts == 1:
        return None
    if parts > config.train.batch_size:
        reason, way_out = f"train.batch_size is {config.train.batch_size}", "Cut it into fewer parts"
    elif config.num_ranks > 1:
        reason, way_out = "the ranks cut the batch already", "Raise train.ranks, or set it to 1"
    elif own.unbiased or traits.has_own_weights or (traits.sharpens_by_loss and own.reweight):
        reason = "examples are weighed by a look at the whole batch, before its first part can be trained"
        knob = "selection.unbiased = 0" if own.unbiased else "selection.reweight = false"
        way_out = f"Set it to 1, {knob}, or another selection.policy ('spread' weighs nothing)"
    else:
        return None
    return ConfigError("train.accumulate", parts, reason, way_out)


# --- the policy and its options -------------------------------------------------------------------


def policy_fits_the_mode(config: Config) -> ConfigError | None:
    """What a policy needs for its choice is known to the process that chooses."""
    policy, traits = config.selection.policy, config.selection.traits
    if traits.needs_trained_losses and config.mode != "inline":
        reason = f"it judges by the trainer's own losses, and in mode {config.mode!r} another process chooses"
        return ConfigError("selection.policy", policy, reason, "Set mode = 'inline'")
    if traits.needs_scores and config.mode == "data-parallel":
        reason = "data-parallel training has no selector"
        way_out = "Use 'full' or 'random' with it, or another mode"
        return ConfigError("selection.policy", policy, reason, way_out)
    return None


def weights_are_given_once(config: Config) -> ConfigError | None:
    """`selection.unbiased` needs a policy with chances that are not used as weights already."""
    own, traits = config.selection, config.selection.traits
    if not own.unbiased:
        return None
    if traits.has_own_weights:
        reason, way_out = f"policy '{own.policy}' has weights of its own", "Set it to 0"
    elif not traits.has_chances:
        reason, way_out = (
            f"policy '{own.policy}' gives the others no chance at all",
            "Use policy 'rank', or 0",
        )
    elif traits.sharpens_by_loss and own.reweight:
        reason = f"policy '{own.policy}' weighs by fresh losses already (selection.reweight)"
        way_out = "Set selection.reweight = false, or unbiased to 0"
    elif own.unbiased < 1.0:
        reason, way_out = "is the greatest weight, and even weights are 1", "Set it to at least 1, or 0"
    else:
        return None
    return ConfigError("selection.unbiased", own.unbiased, reason, way_out)


def gradient_norm_is_known(config: Config) -> ConfigError | None:
    """The norm of the gradient at the outputs has a formula for one loss."""
    if config.selection.score != "gradient" or config.loss.name == "cross_entropy":
        return None
    reason = f"the gradient's norm is known for cross_entropy, the loss is {config.loss.name!r}"
    return ConfigError("selection.score", "gradient", reason, "Set selection.score = 'loss'")


def irreducible_losses_are_given(config: Config) -> ConfigError | None:
    """A policy of reducible losses has a file of the irreducible ones, and losses to subtract them from."""
    own = config.selection
    if not own.traits.needs_irreducible:
        return None
    if not own.irreducible:
        reason = f"policy '{own.policy}' needs a file of irreducible losses"
        way_out = "Make it with `sbpipe score irreducible --out FILE`, and set selection.irreducible to FILE"
        return ConfigError("selection.irreducible", "", reason, way_out)
    if own.score != "loss":
        reason = f"policy '{own.policy}' subtracts losses from losses"
        return ConfigError("selection.score", own.score, reason, "Set selection.score = 'loss'")
    return None


# The first broken rule is reported: what a run is comes before how it is done.
RULES: tuple[Rule, ...] = (
    staleness_can_be_met,
    run_has_one_end,
    heartbeat_outpaces_loss,
    pruning_has_scores,
    policy_fits_the_mode,
    weights_are_given_once,
    gradient_norm_is_known,
    irreducible_losses_are_given,
    shards_can_be_scaled,
    batch_can_be_cut,
    devices_are_names,
    lockstep_publishes_exactly,
    direct_weights_have_a_way,
)
