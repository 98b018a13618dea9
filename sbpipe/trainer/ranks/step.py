"""One step shared by several ranks, and the split that loads a share. Knows the group, not the run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sbpipe import randomness
from sbpipe.config import Config
from sbpipe.models.losses import PerExampleLoss
from sbpipe.records import Ids, Part
from sbpipe.runs.spans import Spans
from sbpipe.trainer.checkpoint import Beside
from sbpipe.trainer.checkpoint_file import SHARES
from sbpipe.trainer.optimizer import build_optimizer
from sbpipe.trainer.ranks import shards
from sbpipe.trainer.ranks.group import Gathering, Group
from sbpipe.trainer.ranks.saving import Saving
from sbpipe.trainer.ranks.share import share_of, share_size, shown
from sbpipe.trainer.ranks.spread import spread
from sbpipe.trainer.ranks.word import By, Do, Word, weights_of_share
from sbpipe.trainer.serving.feed import Examples
from sbpipe.trainer.steering.steering import FreshWeigher
from sbpipe.trainer.step import NotFinite, TrainStep, Weigh
from sbpipe.weights.manifest import Digest, ties_of

_STATES = ("model", "optimizer", "scaler", "ema")
"""What of a checkpoint every rank takes."""


class RankedStep(TrainStep):
    """Forward and backward on this rank's share of the batch; the gradient is the mean over the whole batch.

    Rank 0 calls it as any other step. That tells the other ranks, which call `follow`.
    """

    def __init__(
        self, config: Config, model: nn.Module, loss: PerExampleLoss, spans: Spans, group: Group, folder: Path
    ) -> None:
        """`folder` is where the checkpoints of the run lie; all ranks see it."""
        super().__init__(config, model, loss, build_optimizer(config.optim, model), spans)
        self.folder = folder
        self._group, self._device = group, group.device
        self.duty = group.loop
        self.is_sharded = config.train.shard != "none"
        self._is_wrapped = False
        # Dropout must not repeat in every share.
        self._purpose = f"step {group.rank}" if group.rank else "step"
        self._own_size = share_size(group.batch_size, group.rank, group.world)
        self._word = Word(Do.STEP)
        self._weigh: Weigh | None = None
        self._gathering: Gathering | None = None
        self._whole_losses: torch.Tensor | None = None
        self.intervals: Callable[[], Mapping[Part, int]] = dict
        """How often each part of the weights is published now; set from rank 0's engine."""
        if self.is_sharded:
            for each in (model, *([] if self.ema is None else [self.ema.model])):
                shards.shard(each, group.device, group.world)
            # Again: sharding has replaced the parameters.
            self.optimizer = build_optimizer(config.optim, model)

    # --- a step -----------------------------------------------------------------------------------

    def __call__(
        self, step: int, progress: float, inputs: Any, targets: Any, weigh: Weigh | None = None
    ) -> torch.Tensor:
        """Rank 0: train on its share, the others on theirs; returns the losses of the whole batch."""
        by, table = way_to_weigh(weigh, self._group.batch_size, is_clocked=self._config.is_clocked)
        word = Word(Do.STEP, step, progress, by, intervals=self.intervals(), table=table)
        self._group.tell(word)
        self._weigh = weigh
        self._train(word, inputs, targets)
        losses = self._gathered()
        assert losses is not None, "rank 0 gathers them"
        if weigh is not None and by is By.RECENT:
            weigh(losses)  # only to remember them: the next step is weighed by them
        return losses

    def follow(self, word: Word, inputs: Any, targets: Any) -> None:
        """The other ranks: train on this share as they are told."""
        self._train(word, inputs, targets)
        self._gathered()

    def _train(self, word: Word, inputs: Any, targets: Any) -> None:
        if not self._is_wrapped and not self.is_sharded:
            # Not before the first step: wrapping broadcasts rank 0's weights, and by now a resumed run has
            # loaded them.
            self.forward = self._group.wrap(self.model)
        self._is_wrapped = True
        self._word, self._gathering, self._whole_losses = word, None, None
        with self._group.waiting_for(f"the gradients of step {word.step}"):
            super().__call__(word.step, word.progress, inputs, targets)

    def _whole(self, seed: int, inputs: Any, targets: Any, weigh: Weigh | None) -> torch.Tensor:
        with self._spans.span("forward"), randomness.GLOBAL_GENERATORS:
            self._seed(seed)
            losses = self._losses(inputs, targets)
        own = losses.detach()[: self._own_size]
        self._gathering = self._group.gather(own, self._group.batch_size)
        with self._spans.span("weigh"):
            weights = self._weights(own)
        with self._spans.span("backward"):
            self.optimizer.zero_grad(set_to_none=True)
            weighed = losses if weights is None else losses * weights
            if not self._own_size:
                weighed = 0.0 * weighed
            # Torch averages the gradients of ranks: with this divisor unequal shares count by their examples.
            torch.autograd.backward(
                self.scaler.scale(weighed.sum() / (self._group.batch_size / self._group.world))
            )
        return own

    # --- weights ----------------------------------------------------------------------------------

    def _weights(self, own: torch.Tensor) -> torch.Tensor | None:
        if self._word.by is By.NOTHING:
            return None
        if self._word.by is not By.BATCH:
            return weights_of_share(self._word, own, self._group.rank, self._group.world)
        losses = self._gathered()
        weights = torch.empty(self._group.batch_size)
        if losses is not None and self._weigh is not None:
            weights = self._weigh(losses)
        self._group.spread(weights, "the weights of the whole batch")
        share = share_of(weights, self._group.rank, self._group.world)
        return share.to(own) if len(share) else None

    def _gathered(self) -> torch.Tensor | None:
        if self._gathering is not None:
            self._whole_losses, self._gathering = self._gathering.wait(), None
        return self._whole_losses

    # --- what all ranks do together where each holds a share of the model ---------------------------

    def before_evaluation(self) -> None:
        """Rank 0: called before the test split goes through the model."""
        if self.is_sharded:
            self._group.tell(Word(Do.EVALUATE))

    def state(self) -> dict[str, Any]:
        """For the checkpoint, with whole tensors; rank 0 asks for it."""
        if not self.is_sharded:
            return super().state()
        self._group.tell(Word(Do.GATHER))
        return self.join_state()

    def join_state(self) -> dict[str, Any]:
        """Contribute this rank's shares of the state; rank 0 gets the whole."""
        with self._group.waiting_for("the shares of the weights"):
            whole: dict[str, Any] = shards.gathered(self._live_state(), is_kept=self._group.rank == 0)
        return {**whole, "scaler": self.scaler.state_dict()}

    def checkpoint(self) -> tuple[dict[str, Any], Beside | None]:
        """Rank 0: have every rank copy its share of the state now, to be written beside the loop."""
        if not self.is_sharded or self._config.checkpoint.whole:
            return super().checkpoint()
        self._group.tell(Word(Do.SAVE))
        state, saving = self.take_share()
        if saving is None:
            raise NotFinite
        return state, saving.lead

    def take_share(self) -> tuple[dict[str, Any], Saving | None]:
        """The state with marks for sharded tensors, and what writes this share; None if not finite."""
        from sbpipe.trainer import checkpoint_shares

        state, tensors = checkpoint_shares.cut(self._live_state(), self._ties())
        share = checkpoint_shares.Share(tensors)
        is_fine = self._group.agree(share.is_finite, "all ranks to take their shares of the state")
        return {**state, "scaler": self.scaler.state_dict()}, Saving(self._group, share) if is_fine else None

    def _live_state(self) -> dict[str, Any]:
        live = {"model": dict(self.model.state_dict()), "optimizer": self.optimizer.state_dict()}
        return live if self.ema is None else {**live, "ema": dict(self.ema.model.state_dict())}

    def _ties(self) -> dict[str, str]:
        models = {"model": self.model} | ({} if self.ema is None else {"ema": self.ema.model})
        return {
            f"{kind}/{name}": f"{kind}/{first}"
            for kind, model in models.items()
            for name, first in ties_of(model).items()
        }

    def digest(self) -> str:
        """A fingerprint of the whole model."""
        if not self.is_sharded:
            return super().digest()
        self._group.tell(Word(Do.DIGEST))
        return self.join_digest()

    def join_digest(self) -> str:
        """Contribute this rank's shares of the weights, tensor by tensor; rank 0 gets the fingerprint."""
        digest = Digest()
        with self._group.waiting_for("the shares of the weights"):
            for name, tensor in sorted(self.model.state_dict().items()):
                whole = shards.gathered(tensor, is_kept=self._group.rank == 0)
                if whole is not None:
                    digest.add(name, whole)
        return digest.text

    def restore(self, state: dict[str, Any]) -> None:
        """Rank 0: go on from a checkpoint, with all ranks."""
        self._group.tell(Word(Do.RESTORE))
        self.take_state({name: state[name] for name in (*_STATES, SHARES) if name in state})

    def take_state(self, state: dict[str, Any] | None = None) -> None:
        """Take rank 0's state. Of whole tensors this rank keeps its share; of files it reads only that."""
        state = spread(self._group, state)
        if SHARES in state:
            state = self._read_shares(state, state.pop(SHARES))
        shards.load_model(self.model, state["model"])
        shards.load_optimizer(self.optimizer, state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        if self.ema is not None:
            shards.load_model(self.ema.model, state["ema"])

    def _read_shares(self, state: dict[str, Any], index: dict[str, Any]) -> dict[str, Any]:
        from sbpipe.trainer import checkpoint_shares

        lives = {"model": self.model.state_dict()}
        if self.ema is not None:
            lives["ema"] = self.ema.model.state_dict()
        into = shards.room_for(index, lives, self.optimizer)
        checkpoint_shares.read(self.folder / Path(index["folder"]).name, index, into)
        return dict(checkpoint_shares.filled(state, into.__getitem__))


def way_to_weigh(weigh: Weigh | None, count: int, *, is_clocked: bool) -> tuple[By, torch.Tensor | None]:
    """How the ranks find the weights of their shares of `count` examples, and what they need for it."""
    if weigh is None:
        return By.NOTHING, None
    if not isinstance(weigh, FreshWeigher):
        return By.TABLE, weigh(torch.zeros(count)).double()
    # Under a clock results must be exact, so ranks wait; else no rank waits for another's losses.
    if is_clocked:
        return By.BATCH, None
    recent = weigh.recent()
    return By.RECENT, None if recent is None else recent.table


class SharedSplit:
    """Rank 0's training split: tells the others the next batch, and loads its own share."""

    def __init__(self, split: Examples, group: Group) -> None:
        self._split = split
        self._group = group

    def batch(self, example_ids: Ids, epochs: int | Ids) -> tuple[Any, torch.Tensor]:
        """This rank's share of these examples."""
        epoch_of_each = np.broadcast_to(np.asarray(epochs, np.int64), example_ids.shape)
        self._group.order(example_ids, epoch_of_each)
        with self._group.loader.during("loading a batch"):
            return load_share(self._split, self._group, example_ids, epoch_of_each)


def load_share(split: Examples, group: Group, example_ids: Ids, epochs: Ids) -> tuple[Any, torch.Tensor]:
    """What a rank trains of a batch."""
    return split.batch(shown(example_ids, group.rank, group.world), shown(epochs, group.rank, group.world))
