"""The numbers of a whole run, over all its resumes, under their stable names: what `summary.json` holds.
Reads; never steers.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from sbpipe.config import digest
from sbpipe.link.ports import Port
from sbpipe.machine import devices
from sbpipe.runs.events import EventLog
from sbpipe.runs.names import LOOP_STAGES
from sbpipe.trainer.checkpoint import Checkpoints
from sbpipe.trainer.record.telemetry import Telemetry
from sbpipe.trainer.serving.dispatch import Dispatcher
from sbpipe.trainer.serving.peers import Roster
from sbpipe.trainer.setup import Setup
from sbpipe.weights import manifest as layout
from sbpipe.weights.publisher import Publisher

_SELECTOR_STAGES = ("busy", "view", "score", "select", "apply")


@dataclass
class Accounts:
    """Asks every part what it counted; `before` is what earlier processes of the run had counted."""

    setup: Setup
    telemetry: Telemetry
    publisher: Publisher
    fast: Publisher | None
    roster: Roster
    dispatcher: Dispatcher
    port: Port
    checkpoints: Checkpoints
    events: EventLog
    began: float
    before: dict[str, float] = field(default_factory=dict)

    def totals(self) -> dict[str, float]:
        """Counts and seconds that add up over resumes."""
        seconds = self.setup.spans.total_s
        now = {
            "wall_s": time.perf_counter() - self.began,
            "startup_s": self.telemetry.began - self.began,
            **{f"trainer.{name}_s": seconds[name] for name in LOOP_STAGES},
            **{f"selector.{name}_s": self.roster.total(f"{name}_s") for name in _SELECTOR_STAGES},
            "sync.published": self.publisher.num_published,
            "sync.skipped": self.publisher.num_skipped,
            "sync.fast_skipped": self.fast.num_skipped if self.fast is not None else 0,
            "sync.fast_published": self.fast.num_published if self.fast is not None else 0,
            "sync.applied": int(self.roster.total("applied")),
            "selector.scored": int(self.roster.total("scored")),
            "selector.lost": self.roster.num_lost,
            "lease.fenced": self.dispatcher.num_fenced,
            "lease.fallback": self.dispatcher.num_fallback,
            "link.dropped": sum(self.port.dropped.values()),
            "checkpoint.failed": self.checkpoints.num_failed,
            "events.lost": self.events.num_lost,
        }
        return {name: value + self.before.get(name, 0) for name, value in now.items()}

    def summary(self, ending: str, numbers: dict[str, Any]) -> dict[str, Any]:
        """Everything, with the loop's own numbers, which were taken when it ended."""
        config, totals = self.setup.config, self.totals()
        fast_bytes = self.fast.num_bytes if self.fast is not None else 0
        pushed = (
            totals["sync.published"] * self.setup.manifest.num_bytes
            + totals["sync.fast_published"] * fast_bytes
        )
        selectors = [*self.roster.gone, *self.roster.peers.values()]
        return {
            "status": ending,
            "mode": config.mode,
            "seed": config.seed,
            "config.digest": digest(config),
            **numbers,
            **totals,
            "sync.bytes_per_s": pushed / max(1e-9, numbers["train_s"]),
            "sync.snapshot_ms": self.setup.spans.mean_ms("publish"),
            "sync.fast_publish_ms": self.setup.spans.mean_ms("publish_fast"),
            "sync.fast_bytes": fast_bytes or None,
            "weights.digest": layout.digest(self.setup.train_step.model),
            "weights.bytes": self.setup.manifest.num_bytes,
            "devices": config.num_devices
            if config.is_one_process
            else 1 + max(1, self.dispatcher.most_selectors),
            "device.trainer": devices.describe(self.setup.device),
            "device.selector": ", ".join(sorted({peer.device for peer in selectors})),
            **(
                _of_replicas(config.train.replicas, self.setup.device)
                if config.mode == "data-parallel"
                else {}
            ),
        }


def _of_replicas(count: int, device: torch.device) -> dict[str, Any]:
    """What a run without a selector says of selecting: nothing."""
    nothing = dict.fromkeys(
        ("selector.busy_ratio", "selector.idle_ratio", "staleness.mean", "staleness.p95", "staleness.max")
    )
    return {
        "device.trainer": f"{count} replicas, {devices.describe(device)}",
        "device.selector": "none",
        **nothing,
    }
