"""One optimizer step, and its trial before the run begins. Knows nothing of where batches come from."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sbpipe import randomness
from sbpipe.config import Config
from sbpipe.machine import copies
from sbpipe.machine.layout import layout_of
from sbpipe.models.calling import called
from sbpipe.models.losses import PerExampleLoss, check_loss
from sbpipe.models.stand_in import is_cross_entropy
from sbpipe.runs.spans import Spans
from sbpipe.trainer.checkpoint import Beside
from sbpipe.trainer.duty import Duty
from sbpipe.trainer.ema import Ema
from sbpipe.trainer.optimizer import build_optimizer
from sbpipe.trainer.schedule import rate_factor, set_rate
from sbpipe.weights.manifest import digest

Weigh = Callable[[torch.Tensor], torch.Tensor]
"""From the losses of a batch, detached, to the weight of each."""

AMP_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class NotFinite(Exception):
    """The weights are not finite."""


class TrainStep:
    """Forward, backward, optimizer; returns the fresh loss of each example."""

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        loss: PerExampleLoss,
        optimizer: torch.optim.Optimizer,
        spans: Spans,
    ) -> None:
        self._config = config
        self.model = model
        self.forward = model
        """What the forward pass calls: the model, or its wrapper."""
        self._loss = loss
        self.duty = Duty()
        """The loop's duty, where other ranks wait for its steps."""
        self.before_backward: Callable[[], None] = _do_nothing
        """Called when the step is about to compute for long without the interpreter."""
        self._purpose = "step"
        self.optimizer = optimizer
        self.ema = Ema(model, config.train.ema) if config.train.ema else None
        self._spans = spans
        self._layout = layout_of(model)
        self.rate = config.optim.lr
        self._device = next(model.parameters()).device
        self._amp_dtype = AMP_DTYPES.get(config.train.amp)
        self.scaler = torch.amp.GradScaler(self._device.type, enabled=config.train.amp == "fp16")

    @classmethod
    def alone(cls, config: Config, model: nn.Module, loss: PerExampleLoss, spans: Spans) -> "TrainStep":
        """The step of a trainer without other ranks, with the optimizer of its settings."""
        return cls(config, model, loss, build_optimizer(config.optim, model), spans)

    def __call__(
        self,
        step: int,
        progress: float,
        inputs: Any,
        targets: Any,
        weigh: Weigh | None = None,
    ) -> torch.Tensor:
        """Train on one batch; dropout is seeded by the step, so that a resumed run repeats it."""
        factor = rate_factor(self._config.schedule, progress)
        self.rate = self._config.optim.lr * factor
        set_rate(self.optimizer, self._config.optim.lr, factor)
        self.model.train()
        seed = randomness.key(self._config.seed, self._purpose, step) & (2**63 - 1)
        if self._config.train.accumulate > 1:
            assert weigh is None, "weights are of a whole batch, and the settings refuse them beside parts"
            losses = self._in_parts(seed, inputs, targets)
        else:
            losses = self._whole(seed, inputs, targets, weigh)
        with self._spans.span("optimizer"):
            self._clip()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if self.ema is not None:
                self.ema.update(self.model, step + 1)
        return losses

    def _whole(self, seed: int, inputs: Any, targets: Any, weigh: Weigh | None) -> torch.Tensor:
        """Compute the gradient of a batch in one pass; returns its losses."""
        # Loader threads seed the same global generators for their views, under the same lock.
        with self._spans.span("forward"), randomness.GLOBAL_GENERATORS:
            self._seed(seed)
            losses = self._losses(inputs, targets)
        with self._spans.span("weigh"):
            weighed = losses if weigh is None else losses * weigh(losses.detach())
        self.before_backward()
        with self._spans.span("backward"):
            # Freed instead of zeroed: then the backward pass writes gradients without reading them first.
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(self.scaler.scale(weighed.mean()))
        return losses.detach()

    def _in_parts(self, seed: int, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Compute the gradient of a batch part by part: only one part is in memory at a time."""
        self.optimizer.zero_grad(set_to_none=True)
        found = []
        with self._spans.gathered() as spans:
            for number, part in enumerate(_parts(len(inputs), self._config.train.accumulate)):
                with spans.span("forward"), randomness.GLOBAL_GENERATORS:
                    self._seed(seed + number & (2**63 - 1))  # dropout must not repeat in every part
                    losses = self._losses(inputs[part], targets[part])
                self.before_backward()
                with spans.span("backward"):
                    torch.autograd.backward(self.scaler.scale(losses.sum() / len(inputs)))
                found.append(losses.detach())
        return torch.cat(found)

    def _clip(self) -> None:
        """Scale the gradient down where it is longer than `optim.clip`."""
        if not self._config.optim.clip:
            return
        self.scaler.unscale_(self.optimizer)
        trained = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        nn.utils.clip_grad_norm_(trained, self._config.optim.clip)

    def _seed(self, seed: int) -> None:
        # Not torch.manual_seed: for each absent backend (CUDA, MPS, XPU) it would queue a call with a
        # formatted stack at every step and keep it, a third of a millisecond.
        torch.default_generator.manual_seed(seed)
        if self._device.type != "cpu":
            module = torch.get_device_module(self._device)
            # MPS has one device, and only `manual_seed`.
            getattr(module, "manual_seed_all", module.manual_seed)(seed)

    def _losses(self, inputs: Any, targets: Any) -> torch.Tensor:
        with torch.autocast(self._device.type, self._amp_dtype, enabled=self._amp_dtype is not None):
            outputs = called(self.forward, inputs, self._layout)
        return self._loss(outputs, targets)

    @property
    def judged(self) -> nn.Module:
        """The model that is evaluated and exported: the average, where there is one."""
        return self.model if self.ema is None else self.ema.model

    @property
    def published(self) -> nn.Module:
        """The model that selectors score with."""
        return self.judged if self._config.train.ema_publish else self.model

    is_sharded = False
    """Whether each of several ranks holds a share of the model."""

    def before_evaluation(self) -> None:
        """Called before the test split goes through the model."""

    def digest(self) -> str:
        """A fingerprint of all parameters and buffers, bit for bit."""
        return digest(self.model)

    def state(self) -> dict[str, Any]:
        """For the checkpoint: copies on the CPU of model, average, optimizer and gradient scaler."""
        average = {} if self.ema is None else {"ema": dict(self.ema.model.state_dict())}
        live = {
            **average,
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
        }
        return {**copies.on_host(live), "scaler": self.scaler.state_dict()}

    def checkpoint(self) -> tuple[dict[str, Any], Beside | None]:
        """The state for a checkpoint, and what writes the files beside it, if any.

        Raises `NotFinite` if a weight is not finite: such weights must never replace good ones.
        """
        state = self.state()
        floats = [tensor for tensor in state["model"].values() if tensor.is_floating_point()]
        if not all(bool(tensor.isfinite().all()) for tensor in floats):
            raise NotFinite
        return state, None

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        if self.ema is not None:
            self.ema.model.load_state_dict(state["ema"])

    def rehearse(self, inputs: Any, targets: Any) -> bool:
        """A forward and backward pass that changes nothing: shows a wrong loss or too little memory before a
        run.

        Returns whether the loss is plain cross entropy of classes.
        """
        # What a step holds in memory at one time: the first part of a batch, which is the largest.
        if self._config.train.accumulate > 1:
            first = _parts(len(inputs), self._config.train.accumulate)[0]
            inputs, targets = inputs[first], targets[first]
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        devices = [] if self._device.type == "cpu" else [self._device]
        self.model.train()
        with torch.random.fork_rng(devices, device_type=self._device.type if devices else "cuda"):
            with torch.autocast(self._device.type, self._amp_dtype, enabled=self._amp_dtype is not None):
                outputs = called(self.model, inputs, self._layout)
            torch.autograd.backward(check_loss(self._loss, outputs, targets).mean())
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(buffers[name])
        return is_cross_entropy(self._loss, outputs, targets)


def _do_nothing() -> None:
    """Nobody waits for the interpreter."""


def _parts(number: int, count: int) -> list[slice]:
    """Cut `number` examples into at most `count` parts of equal size; the last may be smaller."""
    size = -(-number // count)
    return [slice(begin, begin + size) for begin in range(0, number, size)]
