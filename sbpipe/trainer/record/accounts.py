"""The numbers of a whole run, over all its resumes: what `summary.json` holds. Reads; never steers."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sbpipe.config import Config, digest
from sbpipe.machine import devices
from sbpipe.records import Manifest, Part, RunEnd, SelectorStats
from sbpipe.runs.events import EventLog
from sbpipe.runs.names import LOOP_STAGES
from sbpipe.runs.restarts import count_restarts
from sbpipe.runs.spans import Spans
from sbpipe.runs.verdict import verdict_of
from sbpipe.trainer.engine import Engine
from sbpipe.trainer.record.telemetry import Telemetry

_SELECTOR_TIMES: dict[str, Callable[[SelectorStats], float]] = {
    "selector.busy_s": lambda stats: stats.busy_s,
    "selector.view_s": lambda stats: stats.view_s,
    "selector.score_s": lambda stats: stats.score_s,
    "selector.score_cpu_s": lambda stats: stats.score_cpu_s,
    "selector.select_s": lambda stats: stats.select_s,
    "selector.apply_s": lambda stats: stats.apply_s,
    "selector.tune_s": lambda stats: stats.tune_s,
}


@dataclass(frozen=True)
class Trained:
    """What is trained, and where."""

    manifest: Manifest
    device: torch.device
    digest: Callable[[], str | None]
    """A fingerprint of the present weights; None where no rank has all of them."""


@dataclass
class Accounts:
    """Collects the counts of every part, and adds those of earlier processes of the run."""

    config: Config
    trained: Trained
    spans: Spans
    telemetry: Telemetry
    engine: Engine
    events: EventLog
    began: float
    run_dir: Path
    failed_checkpoints: Callable[[], int] = lambda: 0
    _before: dict[str, float] = field(default_factory=dict)

    def restore(self, totals: dict[str, float]) -> None:
        """Go on from a checkpoint."""
        self._before = totals

    def totals(self) -> dict[str, float]:
        """Counts and seconds that add up over resumes."""
        seconds, roster = self.spans.total_s, self.engine.roster
        now = {
            "wall_s": time.perf_counter() - self.began,
            "startup_s": self.telemetry.began - self.began,
            **{f"trainer.{name}_s": seconds[name] for name in LOOP_STAGES},
            **{name: roster.total(of) for name, of in _SELECTOR_TIMES.items()},
            **self.engine.totals(),
            "checkpoint.failed": self.failed_checkpoints(),
            "events.lost": self.events.num_lost,
        }
        return {name: value + self._before.get(name, 0) for name, value in now.items()}

    def summary(self, ending: RunEnd, numbers: dict[str, Any]) -> dict[str, Any]:
        """All numbers; `numbers` are the loop's own, taken when it ended."""
        config, totals, publisher = self.config, self.totals(), self.engine.publisher
        manifest, device = self.trained.manifest, self.trained.device
        fast_bytes = publisher[Part.FAST].num_bytes if Part.FAST in publisher else 0
        pushed = totals["sync.published"] * manifest.num_bytes + totals["sync.fast_published"] * fast_bytes
        summary = {
            "status": str(ending),
            "mode": config.mode,
            "policy": config.selection.policy,
            "seed": config.seed,
            "config.digest": digest(config),
            **numbers,
            **totals,
            **count_restarts(self.run_dir),
            "sync.bytes_per_s": pushed / max(1e-9, numbers["train_s"]),
            "sync.snapshot_ms": self.spans.mean_ms("publish"),
            "sync.fast_publish_ms": self.spans.mean_ms("publish_fast"),
            "sync.fast_bytes": fast_bytes or None,
            "weights.digest": self.trained.digest(),
            "weights.bytes": manifest.num_bytes,
            "devices": config.num_ranks
            + (0 if config.is_one_process else max(1, self.engine.most_selectors)),
            "ranks": config.num_ranks,
            "selectors": self.engine.most_selectors,
            "scoring.precision_asked": config.selector.precision,
            "device.trainer": _of_ranks(config.num_ranks, devices.describe(device)),
            "device.selector": ", ".join(sorted({peer.description for peer in self.engine.roster.ever})),
            **(_without_selector() if config.mode == "data-parallel" else {}),
        }
        return verdict_of(summary).numbers() | summary


def _of_ranks(count: int, device: str) -> str:
    return device if count == 1 else f"{count} ranks, {device}"


def _without_selector() -> dict[str, Any]:
    """The numbers on selection of a run without a selector: all unknown."""
    nothing = dict.fromkeys(
        ("selector.busy_ratio", "selector.idle_ratio", "staleness.mean", "staleness.p95", "staleness.max")
    )
    return {"device.selector": "none", **nothing}
