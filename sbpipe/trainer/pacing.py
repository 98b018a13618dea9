"""The sync interval and depth in use, and how "auto" revises them.

`machine/sync_needs.py` computes what costs ask for. `SyncPace` is the one place that holds what is in use;
`Pacer` measures over some steps and decides. It must not know sockets or models.
"""

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from sbpipe.config import Config
from sbpipe.machine.sync_needs import (
    APPLY_SHARE,
    FOLLOWED_SHARE,
    SyncCosts,
    depth_needed,
    depth_to_use,
    interval_needed,
    interval_to_use,
)
from sbpipe.records import Part
from sbpipe.runs.events import EventLog
from sbpipe.runs.names import stages_of
from sbpipe.runs.spans import Spans
from sbpipe.trainer.serving.peers import Roster

log = logging.getLogger("sbpipe.trainer")

WINDOW = 20
"""Steps between two decisions."""
IN_A_ROW = 2
"""Decisions in a row that must ask for the same direction: one window may be disturbed by other load."""


@dataclass
class SyncPace:
    """What is in use. The loop's thread writes, others read without a lock: each number alone is always
    valid.
    """

    interval: int
    """Steps between two publishes of the whole weights."""
    depth: int
    """Train batches leased and not yet trained."""
    fast_interval: int = 0
    """Steps between two publishes of the fast parts; 0 = never apart from the whole."""

    @classmethod
    def of(cls, config: Config) -> "SyncPace":
        """What a run begins with."""
        return cls(config.sync_interval, config.sync_depth, config.fast_interval)

    @property
    def intervals(self) -> dict[Part, int]:
        """How often each part of the weights goes out."""
        # The whole includes the fast part: published as often as the whole, it would be sent twice.
        is_apart = 0 < self.fast_interval < self.interval
        return {Part.WHOLE: self.interval} | ({Part.FAST: self.fast_interval} if is_apart else {})


def agreed(current: int, needs: Sequence[float]) -> float:
    """What the last decisions agree on: of their needs, the nearest to `current`. `current` itself if they
    are too few or ask for different directions.
    """
    if len(needs) < IN_A_ROW:
        return current
    return min(needs) if min(needs) > current else max(needs) if max(needs) < current else current


# --- measuring and deciding -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Mark:
    """Totals at the end of a step."""

    at: float
    apart_s: float
    publish_s: float
    num_published: int


_APART = (*stages_of("trainer", "wait", "apart"), "publish", "publish_fast")


class Pacer:
    """Revises the pace of a pipelined run every WINDOW steps, where it is left to "auto"."""

    def __init__(
        self, config: Config, pace: SyncPace, spans: Spans, roster: Roster, events: EventLog
    ) -> None:
        self._pace, self._spans, self._roster, self._events = pace, spans, roster, events
        sync, is_free = config.sync, not config.is_clocked and config.selection.traits.needs_scores
        self._has_interval = sync.interval == "auto" and is_free
        self._has_depth = sync.depth == "auto" and not config.is_clocked
        self._max_staleness = sync.max_staleness
        self._mark: _Mark | None = None
        self._scored_s = 0.0
        self._step_times: list[float] = []
        self._publish_times: deque[float] = deque(maxlen=WINDOW)
        self._publish_cpu_s: float | None = None
        self._needs = {name: deque[float](maxlen=IN_A_ROW) for name in ("interval", "depth")}
        self._apply_share = FOLLOWED_SHARE if config.keep_bounds is not None else APPLY_SHARE

    def restore(self, used: dict[str, int]) -> None:
        """Go on with what a checkpoint had in use, where it is left to "auto"."""
        if self._has_interval:
            self._pace.interval = used.get("interval", self._pace.interval)
        if self._has_depth:
            self._pace.depth = used.get("depth", self._pace.depth)

    def published(self, cpu_s: float) -> None:
        """Note the processor time that publishing after this step took the loop's thread.

        Used where it is the whole cost: wall time would include waiting for a core.
        """
        self._publish_cpu_s = cpu_s

    def step_done(self) -> None:
        """A step is done; every `WINDOW` of them, decide."""
        if not (self._has_interval or self._has_depth):
            return
        before, self._mark = self._mark, self._now()
        if before is None:
            self._scored_s = self._total_score_s()
            return
        self._note(before, self._mark)
        if len(self._step_times) == WINDOW:
            self.decide(self._costs())
            self._step_times.clear()

    def decide(self, costs: SyncCosts) -> None:
        """Revise what is left to "auto", within the bound on staleness."""
        pace, bound = self._pace, self._max_staleness
        if self._has_interval:
            reason, needed = max(interval_needed(costs).items(), key=lambda item: item[1])
            needed = self._agreed("interval", needed)
            new = interval_to_use(pace.interval, needed, depth=pace.depth, max_staleness=bound)
            self._use("interval", new, reason)
        if self._has_depth:
            step_ms, trip_ms = 1e3 * costs.step_s, 1e3 * costs.round_trip_s
            reason = f"a lease and its answer travel {trip_ms:.3g} ms, a step {step_ms:.3g} ms"
            needed = self._agreed("depth", 1.0 + depth_needed(costs)) - 1.0
            new = depth_to_use(pace.depth, needed, interval=pace.interval, max_staleness=bound)
            self._use("depth", new, reason)

    def _agreed(self, name: str, needed: float) -> float:
        self._needs[name].append(needed)
        return agreed(getattr(self._pace, name), self._needs[name])

    def _use(self, name: str, new: int, reason: str) -> None:
        old = getattr(self._pace, name)
        if new == old:
            return
        setattr(self._pace, name, new)
        log.info("sync.%s = 'auto': %d instead of %d: %s", name, new, old, reason)
        self._events.write("auto", key=f"sync.{name}", old=old, new=new, reason=reason)

    def _now(self) -> _Mark:
        total_s = self._spans.total_s
        return _Mark(
            at=time.perf_counter(),
            apart_s=sum(total_s[name] for name in _APART),
            publish_s=total_s["publish"],
            num_published=self._spans.count["publish"],
        )

    def _note(self, before: _Mark, now: _Mark) -> None:
        # By wall time and not by stages: on an accelerator a stage ends before its work does.
        self._step_times.append(max(0.0, now.at - before.at - (now.apart_s - before.apart_s)))
        if now.num_published > before.num_published:
            wall_s, cpu_s = now.publish_s - before.publish_s, self._publish_cpu_s
            self._publish_times.append(wall_s if cpu_s is None else min(wall_s, cpu_s))

    def _total_score_s(self) -> float:
        return self._roster.total(lambda stats: stats.view_s + stats.score_s + stats.select_s)

    def _costs(self) -> SyncCosts:
        """The costs of the last steps. Medians: a step that waited for a core says nothing about
        the others.
        """
        before, self._scored_s = self._scored_s, self._total_score_s()
        ready, mean = self._roster.ready(), self._roster.mean
        trips = [trip for peer in ready for trip in peer.round_trips]
        publishes = sorted(self._publish_times)
        return SyncCosts(
            step_s=median(self._step_times),
            # The lower quartile: a publish wakes the dispatcher's thread, which often takes over the core at
            # once.
            publish_s=publishes[len(publishes) // 4] if publishes else 0.0,
            apply_s=_seconds(mean(lambda stats: stats.apply_ms))
            + _seconds(mean(lambda stats: stats.refresh_ms)),
            transfer_s=_seconds(mean(lambda stats: stats.transfer_ms)),
            score_s=max(0.0, self._scored_s - before) / WINDOW / max(1, len(ready)),
            round_trip_s=median(trips) if trips else 0.0,
            apply_share=self._apply_share,
        )


def _seconds(milliseconds: float | None) -> float:
    return 1e-3 * (milliseconds or 0.0)
