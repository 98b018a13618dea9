"""Selection in a user's own loop on several ranks: rank 0 has the run, each rank its share of every batch.

The losses of a share come back beside the backward pass and are looked at when the optimizer has stepped. It
must not know how gradients are averaged: that is the user's DDP or FSDP.
"""

import copy
import sys
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sbpipe.config import Config
from sbpipe.data.own_batches import OwnBatches
from sbpipe.errors import ModelError, RankLost, UserError
from sbpipe.machine.place import own_place
from sbpipe.ownloop.handed import Due, Handed, LoopError
from sbpipe.ownloop.journey import Journey, check_losses
from sbpipe.ownloop.plan import Plan
from sbpipe.ownloop.session import Session
from sbpipe.ownloop.shares import SharedParts
from sbpipe.records import Part, RunEnd
from sbpipe.trainer.ranks.follower import Ahead, shares_of
from sbpipe.trainer.ranks.group import Gathering, Group
from sbpipe.trainer.ranks.share import share_size
from sbpipe.trainer.ranks.step import way_to_weigh
from sbpipe.trainer.ranks.word import By, Do, Word, weights_of_share
from sbpipe.weights.gather import Shards

_GRACE_S = 5.0


def num_ranks() -> int:
    """How many processes train together, as far as it is known by now."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    place = own_place()
    return 1 if place is None else place.world


def refuse_ranks(framework: str) -> None:
    """For frameworks that cut batches between ranks themselves: shares of shares would be trained."""
    if num_ranks() > 1:
        raise UserError(
            f"this is one of {num_ranks()} training processes, and {framework} cuts batches between them by "
            "itself. Train in one process, or write the loop: sbpipe.select serves several ranks there"
        )


def whole_copy(model: nn.Module) -> nn.Module:
    """The model for selectors, on the CPU, taken before each rank is left with a share of it."""
    if Shards.are_in(model):
        raise ModelError(
            "select: the model is sharded already (fully_shard), and selectors score with a whole one. Call "
            "sbpipe.select before fully_shard, and loader.attach(optimizer) after it"
        )
    return copy.deepcopy(model).cpu()


def group_of(config: Config, device: torch.device) -> Group | None:
    """The ranks of this program; None where it is alone."""
    if config.num_ranks == 1:
        return None
    if not torch.distributed.is_initialized():
        raise UserError(
            f"select: this is one of {config.num_ranks} training processes, and they have no process group. "
            "Before the first batch, call torch.distributed.init_process_group() and wrap the model in "
            "DistributedDataParallel"
        )
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return Group(rank, world, device, batch_size=config.train.batch_size, wait_s=config.train.ranks_wait_s)


class _Weighing:
    """The weights of a share, as every rank comes to them."""

    def __init__(self, group: Group, part_size: int) -> None:
        self.group, self.part_size = group, part_size
        self.own_size = share_size(part_size, group.rank, group.world)

    def gather(self, losses: torch.Tensor) -> Gathering:
        """Start this share's losses on their way."""
        return self.group.gather(losses.detach()[: self.own_size], self.part_size)

    def scaled(self, weights: torch.Tensor | None, losses: torch.Tensor) -> torch.Tensor | None:
        """Weights under which the mean over a share, averaged over the ranks, is the mean over the batch.

        A rank that was shown an example which is not its own counts for nothing.
        """
        factor = self.own_size * self.group.world / self.part_size
        if weights is None:
            return None if factor == 1.0 else torch.full_like(losses.detach(), factor)
        return weights.to(losses.detach()) * factor


class LeadingJourney(Journey):
    """Rank 0's train batches."""

    def __init__(self, session: Session, group: Group) -> None:
        super().__init__(session)
        self._group = group
        self.handed = Handed(group.rank, group.world)
        self._weighing = _Weighing(group, group.batch_size // session.accumulate)

    def begin_pass(self, first: int) -> int:
        """Tell the other ranks where the pass begins."""
        first = super().begin_pass(first)
        self._group.tell(Word(Do.START, self.step, position=first))
        return first

    def skip(self) -> None:
        """The loop drops its oldest batch: a clock may count on a snapshot then, of which all have shares."""
        if self.handed:
            intervals = self.session.engine.intervals()
            self._group.tell(Word(Do.SKIP, self.step, intervals=intervals))
        super().skip()

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
        self._group.leave(is_fine=not _has_program_failed())
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

        # They hear it when they come to it: a loop that is over here must not wait for theirs.
        thread = threading.Thread(target=say, name="end", daemon=True)
        thread.start()
        thread.join(_GRACE_S)


class _Late:
    """The losses of a part of the batch, on their way; `learn` is told them."""

    def __init__(self, gathering: Gathering, learn: Any) -> None:
        self._gathering, self._learn = gathering, learn

    def wait(self) -> torch.Tensor:
        losses = self._gathering.wait()
        assert losses is not None, "rank 0 gathers them"
        if self._learn is not None:
            self._learn(losses)
        return losses


class FollowingJourney:
    """The train batches of a rank that does not own the run: named, weighed and published as rank 0 says."""

    def __init__(self, plan: Plan, group: Group, device: torch.device) -> None:
        self._group, self._config = group, plan.config
        self._batches = OwnBatches(plan.job.data, seed=plan.config.seed, device=device)
        self._batches.start()
        shares = SharedParts(self._batches, plan.accumulate, group)
        self._ahead = Ahead(shares.shares, group)
        self._weighing = _Weighing(group, group.batch_size // plan.accumulate)
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
        """Where rank 0's pass begins; a snapshot that it publishes before is given its shares."""
        self.finish_if_skipped()
        while (word := self._group.hear()).do is not Do.START:
            if word.do is not Do.PUBLISH:
                raise self._out_of_turn("begins a pass")
            self._join([word.part])
        self.handed.take_back()
        self.step = word.step
        return word.position

    def next_part(self) -> Any:
        """This rank's share of the next batch."""
        if not self.handed.has_part:
            self.handed.add(*self._ahead.next())
        return self.handed.next_part()

    def weights(self, losses: Any) -> torch.Tensor | None:
        """What each example of the share counts; its losses go to rank 0."""
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
        """The optimizer has stepped; rank 0 notes rate and share."""
        if self.handed.weighed is not None:
            self._finish(has_moved=True)

    def finish_if_skipped(self) -> None:
        """A gradient scaler stepped over a batch: on every rank, for it saw the same gradients."""
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
        """Nothing: rank 0 has it all."""
        return {}

    def settle(self) -> None:
        """Nothing: rank 0 looks at all losses."""

    def look_back(self) -> None:
        """The loop is over: finish what it has done."""
        self.finish_if_skipped()

    def close(self, end: RunEnd, reason: str = "") -> dict[str, Any]:
        """Let go of threads and workers; the summary is rank 0's."""
        self._group.leave(is_fine=not _has_program_failed())
        self._ahead.stop()
        self._batches.close()
        return {}

    def fail(self, reason: str) -> None:
        """The loop ended by an error."""
        self._group.leave(is_fine=False)
        self.close(RunEnd.FAILED, reason)


def _has_program_failed() -> bool:
    """Whether this program is ending with a traceback: the other ranks shall not wait for it."""
    return getattr(sys, "last_value", None) is not None
