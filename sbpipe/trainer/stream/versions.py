"""Which versions of the weights are published, which ones a lease asks for, and which answers comply. No
thread, no socket, no model.

A version is the number of steps it was trained for. The fast parts (normalisation, biases, head) may be
published more often than the whole: then a lease names their version too. It is never older than the whole,
which includes fast parts.
"""

import math

from sbpipe.config import Config
from sbpipe.records import Lease, Part, Selection
from sbpipe.trainer.pacing import SyncPace
from sbpipe.trainer.serving.peers import Peer
from sbpipe.trainer.stream.credit import clock_version


class Versions:
    """The versions published last, of the whole and of the fast parts (-1 = none yet)."""

    def __init__(self, config: Config, pace: SyncPace, *, has_fast_part: bool = True) -> None:
        self._config, self._pace = config, pace
        self.fast_interval = config.fast_interval if has_fast_part else 0
        """Steps between publishes of the fast parts; 0 = never apart from the whole."""
        self.offered = dict.fromkeys(Part, -1)
        """The newest version of each part that selectors can have; -1 = none yet."""

    def offer(self, part: Part, version: int) -> None:
        """Note that a version is available.

        Called by the loop or by the thread of a late publish, without a lock: each part has one writer and
        versions only grow. A reader that sees the older one grants as if it had asked a moment before.
        """
        self.offered[part] = max(self.offered[part], version)

    @property
    def published(self) -> int:
        """The newest version of the whole weights."""
        return self.offered[Part.WHOLE]

    @property
    def fast_published(self) -> int:
        """The newest version of the fast part, where it is published apart."""
        return self.offered[Part.FAST]

    def of_batch(self, batch: int) -> tuple[int, int] | None:
        """Under a clock: the versions of the whole and the fast part (-1 = not apart) that score a batch.

        None while they are not out yet.
        """
        config = self._config
        version = clock_version(batch, lag=config.lag, interval=self._pace.interval)
        if version > self.published:
            return None
        if not self.fast_interval:
            return version, -1
        # A whole snapshot includes a fast part, so the fast part is never older than the whole.
        fast_version = max(version, clock_version(batch, lag=config.lag, interval=self.fast_interval))
        is_out = fast_version == version or fast_version <= self.fast_published
        return (version, fast_version) if is_out else None

    def least(self, peer: Peer, steps_done: int) -> tuple[int, int]:
        """Without a clock: the oldest versions a peer may score with."""
        # Shared memory always holds the newest version. Over the wire a transfer takes several steps: a lease
        # for the newest would make the selector wait for it instead of scoring with what has arrived.
        is_at_hand = not peer.pulls_weights or not self._config.selection.traits.needs_scores
        bound = self._config.sync.max_staleness
        oldest = max(0, steps_done + self._pace.depth - bound) if bound else 0
        # Newer ones may still be on their way off the device; then `reach` enforces the bound.
        oldest = min(oldest, self.published)
        version = self.published if is_at_hand else oldest
        if not self.fast_interval:
            return version, -1
        return version, max(version, self.fast_published) if is_at_hand else version

    def reach(self, num_started: int) -> float:
        """How many train batches beyond `num_started` may be leased with the newest weights, so that none is
        trained later than the bound on staleness allows.

        Late weights thus delay leases, not the loop that publishes them.
        """
        bound = self._config.sync.max_staleness
        return self.published + bound - num_started + 1 if bound else math.inf

    def fault(
        self, lease: Lease, selection: Selection, *, steps_done: int, last_step: int, is_stale: bool
    ) -> str:
        """Why the versions of an answer do not fit its lease, or are too old for `last_step`; else "".

        `is_stale`: the scores were looked up, each with a version of its own, already checked when chosen.
        """
        newest = lease.version if lease.exact else max(self.published, steps_done)
        if not lease.version <= selection.version <= newest:
            return f"scored with version {selection.version}, not {lease.version} to {newest}"
        newest_fast = lease.fast_version if lease.exact else max(newest, self.fast_published)
        fast_version = fast_version_of(lease, selection)
        if not is_stale and lease.fast_version >= 0 and not lease.fast_version <= fast_version <= newest_fast:
            return (
                f"scored with fast parts of version {fast_version}, not {lease.fast_version} to {newest_fast}"
            )
        bound, lateness = self._config.sync.max_staleness, last_step - selection.version
        if bound and not is_stale and lateness > bound:
            return f"would be trained {lateness} steps after scoring, the bound is {bound}"
        return ""


def fast_version_of(lease: Lease, selection: Selection) -> int:
    """The version of the fast parts that scored a selection; the whole's version where they are not apart."""
    return (
        selection.version if lease.fast_version < 0 or selection.fast_version < 0 else selection.fast_version
    )
