"""The ranks of a user's own loop other than rank 0: they follow its words in the same order."""

from collections.abc import Mapping
from typing import Any

import torch

from sbpipe.data.own_batches import OwnBatches
from sbpipe.ownloop.handed import Handed, LoopError
from sbpipe.ownloop.journey import check_losses
from sbpipe.ownloop.plan import Plan
from sbpipe.ownloop.ranks import Weighing, has_program_failed
from sbpipe.ownloop.shares import SharedParts
from sbpipe.records import Part, RunEnd
from sbpipe.trainer.ranks.follower import Ahead, shares_of
from sbpipe.trainer.ranks.group import Group
from sbpipe.trainer.ranks.word import By, Do, Word, weights_of_share


class FollowingJourney:
    """The train batches of a rank other than 0: named, weighed and published as rank 0 says."""

    def __init__(self, plan: Plan, group: Group, device: torch.device) -> None:
        self._group, self._config = group, plan.config
        self._batches = OwnBatches(plan.job.data, seed=plan.config.seed, device=device)
        self._batches.start()
        shares = SharedParts(self._batches, plan.accumulate, group)
        self._ahead = Ahead(shares.shares, group)
        self._weighing = Weighing(group, group.batch_size // plan.accumulate)
        manifest = plan.manifest()
        self._published = shares_of(plan.config, plan.published, manifest)
        self._word = Word(Do.STEP)
        self.handed = Handed(group.rank, group.world)
        self.failure = ""
        self.step = 0
        self.num_selectors = 0
        self._ahead.start()

    # --- a batch ----------------------------------------------------------------------------------

    def begin_pass(self, first: int) -> int:
        """Where rank 0's pass begins. This rank first joins the publishes that come before it."""
        self.finish_if_skipped()
        while (word := self._group.hear()).do is not Do.START:
            if word.do is not Do.PUBLISH:
                raise self._out_of_turn("begins a pass")
            self._join([word.part])
        self.handed.take_back()
        self.step = word.step
        return word.position

    def end_pass(self) -> None:
        """Nothing to do: no rank waits for this one here."""

    def next_part(self) -> Any:
        """This rank's share of the next batch."""
        if not self.handed.has_part:
            self.handed.add(*self._ahead.next())
        return self.handed.next_part()

    def weights(self, losses: Any) -> torch.Tensor | None:
        """The weight of each example of the share; its losses go to rank 0."""
        self.finish_if_skipped()
        due = self.handed.due()
        check_losses(losses, due)
        self._word = word = self._group.hear()
        if word.do is not Do.STEP:
            raise self._out_of_turn("weighs a batch")
        self.step = word.step
        gathering = self._weighing.gather(losses)
        due.flight.losses.append(gathering)
        weights = None
        if word.by is By.BATCH:
            gathering.wait()
            whole = self._group.spread(torch.empty(self._weighing.part_size), "the weights of the batch")
            weights = whole[self._group.rank :: self._group.world]
        elif word.by is not By.NOTHING:
            weights = weights_of_share(word, losses.detach(), self._group.rank, self._group.world)
        return self._weighing.scaled(weights, losses)

    # --- its step ---------------------------------------------------------------------------------

    def stepped(self, rate: float, share: float) -> None:
        """The optimizer has stepped; rank 0 records rate and share."""
        if self.handed.weighed is not None:
            self._finish(has_moved=True)

    def finish_if_skipped(self) -> None:
        """A gradient scaler skipped a step: on every rank, because all saw the same gradients."""
        if self.handed.weighed is not None:
            self._finish(has_moved=False)

    def skip(self) -> None:
        """The loop drops its oldest batch, on every rank."""
        self.handed.drop()
        word = self._group.hear()
        if word.do is not Do.SKIP:
            raise self._out_of_turn("skips a batch")
        self.step = word.step + 1
        if self._config.is_clocked:
            self._join(word.due(self.step))

    def _finish(self, *, has_moved: bool) -> None:
        for gathering in self.handed.finish().losses:
            gathering.wait()
        self.step = self._word.step + 1
        if has_moved or self._config.is_clocked:
            self._join(self._word.due(self.step))

    def _join(self, parts: list[Part]) -> None:
        for part in parts:
            if part in self._published:
                with self._group.waiting_for("the shares of the weights"):
                    self._published[part].copy_into(None)

    def _out_of_turn(self, what: str) -> LoopError:
        return LoopError(
            f"rank {self._group.rank} {what}, and rank 0 does not. All ranks must draw, weigh and step alike"
        )

    # --- the end ----------------------------------------------------------------------------------

    def state(self) -> Mapping[str, Any]:
        """Nothing: rank 0 has the whole state."""
        return {}

    def settle(self) -> None:
        """Nothing to do: rank 0 looks at all losses."""

    def look_back(self) -> None:
        """The loop is over: finish its last step."""
        self.finish_if_skipped()

    def close(self, end: RunEnd, reason: str = "") -> dict[str, Any]:
        """End threads and workers; only rank 0 has a summary."""
        self._group.leave(is_fine=not has_program_failed())
        self._ahead.stop()
        self._batches.close()
        return {}

    def fail(self, reason: str) -> None:
        """The loop ended with an error."""
        self._group.leave(is_fine=False)
        self.close(RunEnd.FAILED, reason)
