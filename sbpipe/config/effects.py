"""Settings that have no effect beside others, and settings that do harm. Pure; a run warns of them once."""

from collections.abc import Callable, Iterator

from sbpipe.config.job import TrainConfig
from sbpipe.config.pipeline import SelectionConfig, SyncConfig
from sbpipe.config.schema import Config

Notes = Iterator[str]

MILD_QUANTILE = 0.95
"""From this quantile on `selection.outliers = 'skip'` skips too few to keep a class from being learned."""


def warnings_of(config: Config) -> list[str]:
    """Settings that have no effect in this mode, and one that would not let a run learn."""
    return [note for find in FINDERS for note in find(config)]


# --- the clock, the data and the devices ----------------------------------------------------------


def of_intervals(config: Config) -> Notes:
    """Publishing intervals and the lag, in modes that have none."""
    sync = config.sync
    if sync.interval not in (1, "auto") and config.mode not in ("pipelined", "fixed-lag"):
        yield f"sync.interval = {sync.interval} has no effect: {config.mode} syncs after every step"
    # 0 and the default change nothing: only another number is worth a warning.
    if sync.fast_interval not in (0, SyncConfig.fast_interval) and not config.fast_interval:
        yield f"sync.fast_interval = {sync.fast_interval} has no effect: {_why_not_apart(config)}"
    if sync.lag != 1 and config.mode != "fixed-lag":
        yield f"sync.lag = {sync.lag} has no effect: it belongs to mode = 'fixed-lag'"
    if sync.direct and config.is_one_process:
        yield f"sync.direct has no effect: {config.mode} has no other process to hand weights to"


def _why_not_apart(config: Config) -> str:
    """Why the fast parts of the weights do not travel apart from the whole."""
    if not config.selection.traits.needs_scores:
        return f"policy '{config.selection.policy}' needs no weights"
    every = config.sync_interval
    if every == 1:
        return "the whole is published after every step"
    return f"the whole is published every {every} steps (sync.interval)"


def of_pruning(config: Config) -> Notes:
    """A score file by which no example is left out."""
    if config.data.prune and not config.data.prune_share:
        yield "data.prune has no effect: data.prune_share = 0 leaves no example out"


def of_devices(config: Config) -> Notes:
    """Options of a selector or of ranks that this run does not have."""
    if config.selector.compile and config.selector.precision == "int8":
        yield "selector.compile has no effect: int8 has kernels of its own"
    if config.train.shard != TrainConfig.shard and config.num_ranks == 1:
        yield f"train.shard = '{config.train.shard}' has no effect: one rank holds the whole model"
    if config.checkpoint.whole and (config.train.shard == "none" or config.num_ranks == 1):
        yield "checkpoint.whole has no effect: no rank holds a mere share of the model"


def of_average(config: Config) -> Notes:
    """An average to publish, where there is none."""
    if config.train.ema_publish and not config.train.ema:
        yield "train.ema_publish has no effect: train.ema = 0 keeps no average"


# --- the policy and its options -------------------------------------------------------------------


def of_stretches(config: Config) -> Notes:
    """A last stretch without selection, if its beginning cannot be known."""
    if config.selection.anneal and config.train.seconds:
        yield (
            "selection.anneal has no effect: with train.seconds the end of the run is not known in "
            "candidates or steps"
        )


def of_policies_without_scores(config: Config) -> Notes:
    """Options about scores, for a policy that does not look at them, or keeps everything."""
    own, traits = config.selection, config.selection.traits
    if traits.keeps_all and own.keep != SelectionConfig.keep:
        yield f"selection.keep has no effect: policy '{own.policy}' keeps everything"
    if own.history_by != "all" and not traits.needs_scores:
        yield f"selection.history_by = '{own.history_by}' has no effect: policy '{own.policy}' has no history"
    # Chances and turns mean something without scores, but not where everything is kept.
    idle = () if traits.needs_scores else ("outliers", "score", "reuse_epochs")
    for key in (*idle, "unbiased", "floor") if traits.keeps_all else idle:
        value = getattr(own, key)
        if value != getattr(SelectionConfig, key):
            yield f"selection.{key} = {value} has no effect: policy '{own.policy}' does not look at scores"


def of_outliers(config: Config) -> Notes:
    """A guard so strict that it passes over what is not learned yet."""
    own = config.selection
    is_strict = own.outliers == "skip" and own.outlier_quantile < MILD_QUANTILE
    if is_strict and not own.warmup and own.traits.needs_scores:
        yield (
            f"selection.outliers = 'skip' above quantile {own.outlier_quantile:g} and no selection.warmup: "
            "at first the highest scores are what is not learned yet, and passed over it never is. Set "
            "selection.warmup to the candidates of an epoch or two"
        )


def of_reuse(config: Config) -> Notes:
    """Options for reused scores, where every epoch is scored."""
    own = config.selection
    if own.reuse_by != SelectionConfig.reuse_by and own.reuse_epochs == 1:
        yield (
            f"selection.reuse_by = '{own.reuse_by}' has no effect: every epoch is scored "
            "(selection.reuse_epochs)"
        )


def of_one_policy(config: Config) -> Notes:
    """Options that belong to one policy, beside another."""
    own, traits = config.selection, config.selection.traits
    if own.irreducible and not traits.needs_irreducible:
        yield "selection.irreducible has no effect: it belongs to policy 'rho'"
    idle = () if traits.sharpens_by_loss else ("ramp", "reweight")
    of_steered = () if traits.is_steered else ("guard", "soften")
    for key in (*idle, *of_steered):
        value = getattr(own, key)
        if value != getattr(SelectionConfig, key):
            owner = "'steady' and 'spread'" if key in of_steered else "'steady'"
            yield f"selection.{key} = {value} has no effect: it belongs to policy {owner}"
    for key in ("history_by",) if traits.chooses_sets else ():
        value = getattr(own, key)
        if value != getattr(SelectionConfig, key):
            yield f"selection.{key} = '{value}' has no effect: policy '{own.policy}' has no history"


# In the order of the warnings.
FINDERS: tuple[Callable[[Config], Notes], ...] = (
    of_intervals,
    of_pruning,
    of_stretches,
    of_policies_without_scores,
    of_outliers,
    of_reuse,
    of_one_policy,
    of_devices,
    of_average,
)
