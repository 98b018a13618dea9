"""How a late train batch is completed: from the line, without a selector. Pure.

Fills go through the same ledger, so every candidate is still considered exactly once. Where the score table
has recent scores of the next candidates, the policy chooses among them; else all are kept except those whose
labels are probably wrong.
"""

import math

from sbpipe.records import Ids, Selection
from sbpipe.trainer.stream.fallback import FILL, Fallback
from sbpipe.trainer.stream.stream import Stream

MOST_CHOICES = 4
"""How often candidates of a batch are chosen by scores; what is still missing is kept without scores. Where
all scores are alike a policy may keep none, and the loop must not wait for it.
"""
MOST_PASSES = 2 * MOST_CHOICES
"""Passes after which no candidate is passed over any more: all may look wrongly labelled."""


class Filler:
    """Completes the next train batch of a stream."""

    def __init__(self, stream: Stream, drawer: Fallback) -> None:
        self._stream, self._drawer = stream, drawer
        self.taken_back: set[int] = set()
        """Leases taken back at the end of the line: their late answers are no fault of their selectors."""

    def fill(self) -> int:
        """Complete the next batch; returns how many examples that took, 0 if no candidate is left.

        Leases that are out stay out, and their answers go into later batches.
        """
        stream, filled = self._stream, 0
        before, passes = stream.num_assembled, 0
        while stream.num_assembled == before and not stream.has_enough_batches():
            answer = self._next(stream.batch_size - stream.leftover, passes)
            passes += 1
            if answer is not None:
                filled += len(answer[0].kept)
                stream.accept(*answer)
            elif not self._take_back():
                break
        return filled

    def _next(self, need: int, passes: int) -> tuple[Selection, Ids] | None:
        """Answer a lease of the next candidates, after `passes` passes for this batch: by recent scores where
        these are known, else all except those whose labels are probably wrong.
        """
        stream, ledger = self._stream, self._stream.ledger
        keep_all, change_at = stream.stretches.at(ledger.next_place, stream.num_assembled)
        places = ledger.reach(need if keep_all else math.ceil(need / stream.keep), change_at)
        if places is None:
            return None
        step = stream.steps_done
        is_chosen = passes < MOST_CHOICES and not keep_all and self._knows(places)
        if not is_chosen:
            places = places[0], min(places[1], places[0] + need)
        lease = stream.leases.put_out(
            stream.now, FILL, places, 0.0, enough=need, most=need, versions=(0, -1), keep_all=keep_all
        )
        if is_chosen:
            return self._drawer.answer(lease, step)
        return self._drawer.take_all(lease, step, passes_over=passes < MOST_PASSES)

    def _knows(self, places: tuple[int, int]) -> bool:
        """Whether most of these candidates were scored within about an epoch's steps."""
        stream, num_examples = self._stream, self._stream.ledger.num_examples
        epoch, start = divmod(places[0], num_examples)
        recent = math.ceil(num_examples * stream.keep / stream.batch_size)
        stop = start + places[1] - places[0]
        return self._drawer.knows(epoch, start, stop, step=stream.steps_done, recent=recent)

    def _take_back(self) -> bool:
        """At the end of the line: take back the leases that are out, or the last batches would
        wait for them.
        """
        held = list(self._stream.ledger.out)
        for lease_id in held:
            self._stream.ledger.take_back(lease_id)
        self.taken_back.update(held)
        return bool(held)
