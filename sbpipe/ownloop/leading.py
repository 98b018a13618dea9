"""Rank 0 of a user's own loop: it owns the run, and trains its share of every batch like the others.

Losses of the shares are gathered during the backward pass, and looked at when the optimizer has stepped.
"""

import threading
from typing import Any

import torch

from sbpipe.errors import RankLost
from sbpipe.ownloop.handed import Due, Handed
from sbpipe.ownloop.journey import OWN_STAGES, Journey
from sbpipe.ownloop.ranks import Weighing, has_program_failed
from sbpipe.ownloop.session import Session
from sbpipe.records import RunEnd
from sbpipe.trainer.ranks.group import Gathering, Group
from sbpipe.trainer.ranks.step import way_to_weigh
from sbpipe.trainer.ranks.word import By, Do, Word, weights_of_share

_GRACE_S = 5.0
_OWN_TIMES = 8.0
"""In the user's own stages ranks wait this many times as long as usual: there may be an evaluation."""


class LeadingJourney(Journey):
    """Rank 0's train batches."""

    def __init__(self, session: Session, group: Group) -> None:
        super().__init__(session)
        self._group = group
        self.handed = Handed(group.rank, group.world)
        self._weighing = Weighing(group, group.batch_size // session.accumulate)

    def begin_pass(self, first: int) -> int:
        """Tell the other ranks where the pass begins."""
        first = super().begin_pass(first)
        self._group.tell(Word(Do.START, self.step, position=first))
        return first

    def skip(self) -> None:
        """The loop drops its oldest batch. Under a clock a publish may be due, which all ranks must join."""
        if self.handed:
            intervals = self.session.engine.intervals()
            self._group.tell(Word(Do.SKIP, self.step, intervals=intervals))
        super().skip()

    def _enter(self, stage: str) -> None:
        super()._enter(stage)
        if stage == "wait":
            self._group.loop.end()  # selectors may take their time
        else:
            self._group.loop.begin(f"in stage {stage!r}", _OWN_TIMES if stage in OWN_STAGES else 1.0)

    def end_pass(self) -> None:
        """Between passes the loop may take as long as it likes."""
        self._group.loop.end()

    def _weigh(self, due: Due, losses: torch.Tensor) -> torch.Tensor | None:
        engine, group = self.session.engine, self._group
        weigh = self.weigher(due)
        by, table = way_to_weigh(weigh, self._weighing.part_size, is_clocked=self._config.is_clocked)
        word = Word(Do.STEP, due.flight.batch.step, by=by, intervals=engine.intervals(), table=table)
        group.tell(word)
        gathering = self._weighing.gather(losses)
        weights = None
        if by is By.BATCH and weigh is not None:
            whole = gathering.wait()
            assert whole is not None, "rank 0 gathers them"
            weights = weigh(whole).float()
            group.spread(weights, "the weights of the whole batch")
            weights = weights[group.rank :: group.world]
            weigh = None
        elif by is not By.NOTHING:
            weights = weights_of_share(word, losses.detach(), group.rank, group.world)
        due.flight.losses.append(_Late(gathering, weigh if by is By.RECENT else None))
        return self._weighing.scaled(weights, losses)

    def _fresh(self, losses: list[Any]) -> torch.Tensor:
        return torch.cat([late.wait() for late in losses])

    def close(self, end: RunEnd, reason: str = "") -> dict[str, Any]:
        """End the run, and let the other ranks know."""
        summary = super().close(end, reason)
        self._say_end()
        self._group.leave(is_fine=not has_program_failed())
        return summary

    def fail(self, reason: str) -> None:
        """The loop ended by an error."""
        self._group.leave(is_fine=False)
        super().fail(reason)

    def _say_end(self) -> None:
        def say() -> None:
            try:
                self._group.tell(Word(Do.END))
                self._group.order_end()
            except RankLost:
                pass  # they were done before

        # In a thread: the other ranks may get there late, and this loop must not wait for them.
        thread = threading.Thread(target=say, name="end", daemon=True)
        thread.start()
        thread.join(_GRACE_S)


class _Late:
    """The losses of a part, still being gathered; `learn` is called with them."""

    def __init__(self, gathering: Gathering, learn: Any) -> None:
        self._gathering, self._learn = gathering, learn

    def wait(self) -> torch.Tensor:
        losses = self._gathering.wait()
        assert losses is not None, "rank 0 gathers them"
        if self._learn is not None:
            self._learn(losses)
        return losses
