"""The complete description of a run: sections, derived values, every key. Knows no files, no flags."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from sbpipe.config.job import (
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    ScheduleConfig,
    TrainConfig,
    ViewConfig,
)
from sbpipe.config.pipeline import LinkConfig, SelectionConfig, SelectorConfig, SyncConfig, TrackersConfig
from sbpipe.config.setting import MOST_SEEDS, setting
from sbpipe.config.traits import KeepBounds

MODES = ("pipelined", "lockstep", "fixed-lag", "inline", "data-parallel")


@dataclass(frozen=True)
class Config:
    """One run, wholly described."""

    mode: str = setting("pipelined", "how the roles are clocked", choices=MODES)
    seed: int = setting(0, "seed of everything random in the run", low=0, high=MOST_SEEDS)
    data: DataConfig = field(default_factory=DataConfig)
    view: ViewConfig = field(default_factory=ViewConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    selector: SelectorConfig = field(default_factory=SelectorConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    link: LinkConfig = field(default_factory=LinkConfig)
    trackers: TrackersConfig = field(default_factory=TrackersConfig)

    @property
    def score_batch_size(self) -> int:
        """Candidates per scoring forward pass.

        By default half a train batch: a lease ends with the pass that kept enough, so shorter passes
        overshoot less, which means less lag, and from some 64 candidates on they cost no more per candidate
        on a CPU. A selector that measures its own ("auto") starts from it.
        """
        given = self.selector.batch_size
        return given if isinstance(given, int) and given else max(1, self.train.batch_size // 2)

    @property
    def first_precision(self) -> str:
        """The precision of a selector's first leases; under a clock, or compiled, of all leases."""
        return "fp32" if self.selector.precision == "auto" else self.selector.precision

    @property
    def may_measure(self) -> bool:
        """Whether "auto" is decided by measuring in the course of the run.

        Under a logical clock a run repeats bit for bit, and what a measurement chooses depends on timing.
        With `selector.compile` each choice would have to be compiled to be measured.
        """
        return not self.is_clocked and not self.selector.compile

    @property
    def is_clocked(self) -> bool:
        """Whether a logical clock, not arrival, decides which weights score which batch."""
        return self.mode != "pipelined"

    @property
    def must_repeat(self) -> bool:
        """Whether runs must repeat bit for bit; data-parallel is for speed, and scores nothing."""
        return self.is_clocked and self.mode != "data-parallel"

    @property
    def fills(self) -> bool:
        """Whether a late batch is filled; under a logical clock no batch is late."""
        return self.selection.late == "fill" and not self.is_clocked

    @property
    def needs_a_selector(self) -> bool:
        """Whether the loop stops or waits if no selector is left, instead of going on alone."""
        return self.is_clocked or self.selection.fallback in ("wait", "fail")

    @property
    def keep_bounds(self) -> KeepBounds | None:
        """The bounds within which the keep rate follows the selectors' speed; None = it is constant."""
        # Under a clock a run must repeat bit for bit, and speed does not.
        is_auto = self.selection.keep == "auto" and not self.is_clocked
        return self.bounds_of_auto if is_auto else None

    @property
    def bounds_of_auto(self) -> KeepBounds | None:
        """Between what `selection.keep = "auto"` moves; None = the policy has no bounds.

        A budget in epochs counts candidates, so a lower keep rate takes steps away; one in steps or seconds
        does not.
        """
        bounds = self.selection.traits.keep_bounds
        if bounds is None or self.train.steps or self.train.seconds:
            return bounds
        return bounds._replace(least=bounds.usual)

    @property
    def is_one_process(self) -> bool:
        """Whether selection runs in the trainer's process."""
        return self.mode in ("inline", "data-parallel")

    @property
    def num_devices(self) -> int:
        """Devices that the run holds, busy or not."""
        return self.num_ranks if self.is_one_process else self.num_ranks + 1

    @property
    def num_ranks(self) -> int:
        """Processes that train, each on its share of every train batch."""
        return self.train.ranks or (2 if self.mode == "data-parallel" else 1)

    @property
    def lag(self) -> int:
        """Steps between scoring and training that the logical clock prescribes."""
        return self.sync.lag if self.mode == "fixed-lag" else 0

    @property
    def sync_interval(self) -> int:
        """Steps between publishes at the beginning; lockstep and inline sync every step by definition."""
        given = self.sync.interval
        return given if isinstance(given, int) and self.mode in ("pipelined", "fixed-lag") else 1

    @property
    def sync_depth(self) -> int:
        """Train batches leased and not yet trained, at the beginning."""
        return self.sync.depth if isinstance(self.sync.depth, int) else 2

    @property
    def fast_interval(self) -> int:
        """Steps between publishes of the fast parts; 0 if all weights are published as often, or none."""
        # With all weights as often, the fast parts would be sent twice. An interval that moves may grow.
        may_grow = self.sync.interval == "auto" and not self.is_clocked
        is_apart = may_grow or self.sync.fast_interval < self.sync_interval
        return self.sync.fast_interval if is_apart and self.selection.traits.needs_scores else 0


# From the annotations, so that a new section is known to parser, writer and manual at once.
SECTIONS: dict[str, type[Any]] = {
    name: kind for name, kind in get_type_hints(Config).items() if hasattr(kind, "__dataclass_fields__")
}


RETIRED = {
    "schedule.by": "progress always counts what ends the run",
    "train.replicas": "train.ranks says how many processes share a batch, in every mode",
}
"""Former settings, and why they were removed: the files of older runs still hold them."""


def known_keys() -> dict[str, dataclasses.Field[Any]]:
    """Every dotted key and its field."""
    keys: dict[str, dataclasses.Field[Any]] = {}
    for outer in dataclasses.fields(Config):
        section = SECTIONS.get(outer.name)
        keys |= (
            {f"{outer.name}.{inner.name}": inner for inner in dataclasses.fields(section)}
            if section
            else {outer.name: outer}
        )
    return keys
