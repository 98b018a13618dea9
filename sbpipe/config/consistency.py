"""What must hold between settings, and which have no effect together. Pure."""

from sbpipe.config.schema import Config, SelectionConfig, SyncConfig, TrainConfig
from sbpipe.errors import ConfigError

MILD_QUANTILE = 0.95
"""From here on `selection.outliers = 'skip'` passes over too few to keep a class from being learned."""


def least_staleness(config: Config) -> int:
    """The smallest `sync.max_staleness` that the mode, depth, lag and interval can promise."""
    if config.mode not in ("pipelined", "fixed-lag"):
        return 0
    ahead = config.sync.lag if config.mode == "fixed-lag" else config.sync.depth
    return ahead + config.sync.interval - 1


def check_together(config: Config) -> None:
    """Refuse settings that cannot be met together."""
    bound, least = config.sync.max_staleness, least_staleness(config)
    if bound and bound < least:
        ahead = "sync.lag" if config.mode == "fixed-lag" else "sync.depth"
        reason = f"cannot be met with {ahead} and sync.interval = {config.sync.interval}"
        raise ConfigError(
            "sync.max_staleness",
            bound,
            reason,
            f"Set it to at least {least}, or lower {ahead} or sync.interval",
        )
    if config.train.steps and config.train.seconds:
        raise ConfigError(
            "train.seconds",
            config.train.seconds,
            f"train.steps = {config.train.steps} is set too",
            "Set only one of them",
        )
    if config.link.heartbeat_s * 2 > config.link.lost_after_s:
        reason = f"a peer is lost after {config.link.lost_after_s} s of silence (link.lost_after_s)"
        raise ConfigError(
            "link.heartbeat_s", config.link.heartbeat_s, reason, "Set it to less than half of that"
        )
    if config.data.prune_share and not config.data.prune:
        reason = "there is no score file to tell which examples"
        raise ConfigError(
            "data.prune_share",
            config.data.prune_share,
            reason,
            "Set data.prune to a file made by `sbpipe score el2n`",
        )
    _check_selection(config)
    if config.selection.traits.needs_irreducible:
        _check_rho(config)
    if config.mode == "data-parallel":
        _check_replicas(config)
    if config.mode == "lockstep" and config.sync.dtype != "fp32":
        raise ConfigError(
            "sync.dtype", config.sync.dtype, "lockstep promises bit-equal scores", "Set sync.dtype = 'fp32'"
        )
    for key in ("precision", "batch_size"):
        if getattr(config.selector, key) == "auto":
            _check_measured(config, f"selector.{key}")


def _check_selection(config: Config) -> None:
    own, traits = config.selection, config.selection.traits
    if traits.needs_trained_losses and config.mode != "inline":
        reason = f"it judges by the trainer's own losses, and in mode {config.mode!r} another process chooses"
        raise ConfigError("selection.policy", own.policy, reason, "Set mode = 'inline'")
    if traits.has_own_weights and own.unbiased:
        raise ConfigError(
            "selection.unbiased", own.unbiased, f"policy '{own.policy}' has weights of its own", "Set it to 0"
        )
    if own.unbiased and not traits.has_chances:
        reason = f"policy '{own.policy}' gives the others no chance at all"
        raise ConfigError("selection.unbiased", own.unbiased, reason, "Use policy 'rank', or 0")
    if own.unbiased and traits.is_steered and own.reweight:
        reason = f"policy '{own.policy}' weighs by fresh losses already (selection.reweight)"
        raise ConfigError(
            "selection.unbiased", own.unbiased, reason, "Set selection.reweight = false, or unbiased to 0"
        )
    if own.unbiased and own.unbiased < 1.0:
        raise ConfigError(
            "selection.unbiased",
            own.unbiased,
            "is the greatest weight, and even weights are 1",
            "Set it to at least 1, or 0",
        )
    if own.score == "gradient" and config.loss.name != "cross_entropy":
        reason = f"the gradient's norm is known for cross_entropy, the loss is {config.loss.name!r}"
        raise ConfigError("selection.score", own.score, reason, "Set selection.score = 'loss'")


def _check_rho(config: Config) -> None:
    own = config.selection
    if not own.irreducible:
        way_out = "Make it with `sbpipe score irreducible --out FILE`, and set selection.irreducible to FILE"
        raise ConfigError(
            "selection.irreducible", "", "policy 'rho' needs a file of irreducible losses", way_out
        )
    if own.score != "loss":
        raise ConfigError(
            "selection.score",
            own.score,
            "policy 'rho' subtracts losses from losses",
            "Set selection.score = 'loss'",
        )


def _check_measured(config: Config, key: str) -> None:
    if config.mode == "lockstep":
        reason = "lockstep promises bit-equal scores, and what a measurement chooses may differ"
        raise ConfigError(key, "auto", reason, "Name one")
    if config.selector.compile:
        raise ConfigError(
            key, "auto", "with selector.compile each one would be compiled to be measured", "Name one"
        )


def _check_replicas(config: Config) -> None:
    policy, batch_size, replicas = config.selection.policy, config.train.batch_size, config.train.replicas
    if config.selection.traits.needs_scores or config.selection.traits.needs_trained_losses:
        reason = "data-parallel training has no selector"
        raise ConfigError(
            "selection.policy", policy, reason, "Use 'full' or 'random' with it, or another mode"
        )
    if batch_size % replicas:
        reason = (
            f"is not a multiple of train.replicas = {replicas}, so that the replicas' shares would differ"
        )
        raise ConfigError("train.batch_size", batch_size, reason, "Choose one that is")


def warnings_of(config: Config) -> list[str]:
    """Settings that have no effect in this mode, and one that would not let a run learn."""
    notes, traits = [], config.selection.traits
    if config.mode not in ("pipelined", "fixed-lag") and config.sync.interval != 1:
        notes.append(
            f"sync.interval = {config.sync.interval} has no effect: {config.mode} syncs after every step"
        )
    if (
        config.sync.fast_interval != SyncConfig.fast_interval
        and config.sync.fast_interval
        and not config.fast_interval
    ):
        notes.append(
            f"sync.fast_interval = {config.sync.fast_interval} has no effect: {_why_not_apart(config)}"
        )
    if config.sync.lag != 1 and config.mode != "fixed-lag":
        notes.append(f"sync.lag = {config.sync.lag} has no effect: it belongs to mode = 'fixed-lag'")
    if config.data.prune and not config.data.prune_share:
        notes.append("data.prune has no effect: data.prune_share = 0 leaves nobody out")
    if config.selection.irreducible and not traits.needs_irreducible:
        notes.append("selection.irreducible has no effect: it belongs to policy 'rho'")
    if config.selection.anneal and config.train.seconds:
        notes.append(
            "selection.anneal has no effect: with train.seconds the end of the run is not known in "
            "candidates or steps"
        )
    if traits.keeps_all and config.selection.keep != SelectionConfig.keep:
        notes.append(f"selection.keep has no effect: policy '{config.selection.policy}' keeps everything")
    if config.selection.history_by != "all" and not traits.needs_scores:
        notes.append(
            f"selection.history_by = '{config.selection.history_by}' has no effect: policy "
            f"'{config.selection.policy}' has no history"
        )
    for key in ("unbiased", "outliers", "floor", "score", "reuse_epochs"):
        value = getattr(config.selection, key)
        blind = traits.keeps_all or (not traits.needs_scores and key not in ("unbiased", "floor"))
        if blind and value != getattr(SelectionConfig, key):
            notes.append(
                f"selection.{key} = {value} has no effect: policy '{config.selection.policy}' does not look "
                "at scores"
            )
    if _skips_the_unlearned(config.selection):
        notes.append(
            f"selection.outliers = 'skip' above quantile {config.selection.outlier_quantile:g} and no "
            "selection.warmup: at first the "
            "highest scores are what is not learned yet, and passed over it never is. Set selection.warmup "
            "to the candidates of an "
            "epoch or two"
        )
    if config.selection.reuse_by != SelectionConfig.reuse_by and config.selection.reuse_epochs == 1:
        notes.append(
            f"selection.reuse_by = '{config.selection.reuse_by}' has no effect: every epoch is scored "
            "(selection.reuse_epochs)"
        )
    for key in ("ramp", "reweight", "soften", "guard"):
        value = getattr(config.selection, key)
        if not traits.is_steered and value != getattr(SelectionConfig, key):
            notes.append(f"selection.{key} = {value} has no effect: it belongs to policy 'steady'")
    if config.selector.compile and config.selector.precision == "int8":
        notes.append("selector.compile has no effect: int8 has kernels of its own")
    if config.mode != "data-parallel" and config.train.replicas != TrainConfig.replicas:
        notes.append(
            f"train.replicas = {config.train.replicas} has no effect: it belongs to mode = 'data-parallel'"
        )
    return notes


def _skips_the_unlearned(selection: SelectionConfig) -> bool:
    is_harsh = selection.outliers == "skip" and selection.outlier_quantile < MILD_QUANTILE
    return is_harsh and not selection.warmup and selection.traits.needs_scores


def _why_not_apart(config: Config) -> str:
    if not config.selection.traits.needs_scores:
        return f"policy '{config.selection.policy}' needs no weights"
    every = config.sync_interval
    return (
        "the whole is published after every step"
        if every == 1
        else f"the whole is published every {every} steps (sync.interval)"
    )
