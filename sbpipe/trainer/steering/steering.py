"""What the trainer's fresh losses decide: how sharply the next leases choose, and what each trained example
weighs.

For `steady` it puts the ramp, the fresh weights and the guard together; for every policy it measures how calm
the loop is. It knows neither leases nor sockets nor the model. On an accelerator it reads losses one step
late, so that it never waits for the device, unless a logical clock must not depend on that.
"""

import logging
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sbpipe.config import Config
from sbpipe.records import TrainBatch
from sbpipe.runs.events import EventLog
from sbpipe.selection.policies.infobatch import TrainedLosses
from sbpipe.trainer.record.census import Census
from sbpipe.trainer.steering.arriving import Arriving
from sbpipe.trainer.steering.fresh import FreshWeights, effective_share
from sbpipe.trainer.steering.guard import Guard
from sbpipe.trainer.steering.ramp import Ramp
from sbpipe.trainer.steering.swing import Swing
from sbpipe.trainer.step import Weigh

log = logging.getLogger("sbpipe.trainer")

FOLLOWS, SWAYS = 2.0, 35.0
"""A step counts as swinging when the classes of its batches follow something (swing) and the model sways
(prediction swing) above these.
"""
TOO_MUCH = 6.0
"""Swing that must be exceeded instead where nobody tells what the model predicts."""
LEARNING = 96
"""First steps, which never count: healthy runs swing in them too."""
ENOUGH, PATIENCE = 80, 128
"""So many of the last so many steps must swing before the run is said to: 96 did in the calmest bad run
measured, 56 in the wildest good.
"""
LONGEST_MEMORY = 4096
"""Fresh losses that weights are taken from, at the most: every step looks through them all."""


_GEOMETRIC, _LEAST = ("swing", "prediction_swing"), 1e-3


class Reading(NamedTuple):
    """What is known of the loop after a step; None = does not apply, or not yet known."""

    swing: float | None = None
    prediction_swing: float | None = None
    ess: float | None = None
    strength: float | None = None
    guard: float | None = None


def is_swinging(swing: float | None, prediction_swing: float | None) -> bool:
    """Whether a step swings: batches that follow classes and a model that sways are each found in good runs,
    both for long only in bad ones.
    """
    if swing is None:
        return False
    return swing > TOO_MUCH if prediction_swing is None else swing > FOLLOWS and prediction_swing > SWAYS


@dataclass
class _Means:
    """Running means of the readings; geometric ones of the swings, whose first steps would else outweigh all
    others.
    """

    totals: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, reading: Reading) -> None:
        for name, value in reading._asdict().items():
            if value is not None:
                added = math.log(max(value, _LEAST)) if name in _GEOMETRIC else value
                self.totals[name] = self.totals.get(name, 0.0) + added
                self.counts[name] = self.counts.get(name, 0) + 1

    def of(self, name: str) -> float | None:
        if name not in self.counts:
            return None
        mean = self.totals[name] / self.counts[name]
        return math.exp(mean) if name in _GEOMETRIC else mean


class Steering:
    """Handed the fresh losses of each step; hands out the strength of the next leases and the weights of the
    next batch.
    """

    def __init__(
        self, config: Config, census: Census, events: EventLog, trained: TrainedLosses | None = None
    ) -> None:
        """`trained` is told the losses of every step, where somebody chooses by them."""
        selection = config.selection
        self._trained = trained
        self._config, self._census, self._events = config, census, events
        self._is_steady = selection.traits.is_steered
        window = max(2 * config.train.batch_size, min(selection.history, LONGEST_MEMORY))
        self._ramp = Ramp(2 * config.train.batch_size) if self._is_steady and selection.ramp else None
        self._guard = Guard() if self._is_steady and selection.guard else None
        self._fresh = (
            FreshWeights(keep=selection.keep, window=window)
            if self._is_steady and selection.reweight
            else None
        )
        self._is_immediate = self._is_steady and config.is_clocked
        self._swing, self._prediction_swing = Swing(), Swing()
        self._num_predicted: int | None = None
        self._pending: tuple[TrainBatch, Arriving, Arriving, Arriving | None] | None = None
        self._weights: torch.Tensor | None = None
        self._means = _Means()
        self._swinging: deque[bool] = deque(maxlen=PATIENCE)
        self._was_warned = False
        self.reading = Reading()

    @property
    def strength(self) -> float:
        """How sharply fresh selection would choose now: the target that weights aim at."""
        if not self._is_steady:
            return 1.0
        return (self._ramp.strength if self._ramp else 1.0) * (self._guard.factor if self._guard else 1.0)

    @property
    def proposal(self) -> float:
        """How sharply the next leases choose by scores that will be old: softer than the target where the
        user says so.
        """
        return self.strength * (1.0 - self._config.selection.soften) if self._is_steady else 1.0

    def weigher(self, batch: TrainBatch) -> Weigh | None:
        """From the fresh losses of a batch to the weights of its examples; None = all count alike."""
        fresh, most = self._fresh, self._config.selection.unbiased
        if (
            self._trained is not None
        ):  # as InfoBatch does: whoever could have been dropped counts for those who were
            most = math.inf
        if fresh is None and most:
            return lambda losses: self._unbiased(batch, most).to(losses.device, non_blocking=True)
        if fresh is None:
            return None
        classes = (
            self._census.classes_of(batch.example_ids)
            if self._config.selection.history_by == "class"
            else None
        )

        def weigh(losses: torch.Tensor) -> torch.Tensor:
            keep_probability = _on_device(batch.keep_probability, losses.device)
            groups = None if classes is None else _on_device(classes, losses.device)
            self._weights = fresh(losses, keep_probability, self.strength, groups)
            return self._weights

        return weigh

    def _unbiased(self, batch: TrainBatch, most: float) -> torch.Tensor:
        """keep / chance, cut off: in expectation a batch then pulls like the mean of all candidates.
        `infobatch` leaves `keep` out.
        """
        numerator = np.float32(1.0 if self._trained is not None else self._config.selection.keep)
        self._weights = torch.from_numpy(np.minimum(numerator / batch.keep_probability, np.float32(most)))
        return self._weights

    def observe(self, batch: TrainBatch, losses: torch.Tensor, targets: torch.Tensor) -> None:
        """Take in what a step gave; what steers is that step on the CPU and under a logical clock, else the
        one before it.
        """
        weights = Arriving(self._weights) if self._weights is not None else None
        before, self._pending = self._pending, (batch, Arriving(losses), Arriving(targets), weights)
        if losses.device.type == "cpu" or self._is_immediate:
            before, self._pending = self._pending, None
        if before is not None:
            self._take(*before)

    def _take(self, batch: TrainBatch, losses: Arriving, targets: Arriving, weights: Arriving | None) -> None:
        counts = self._census.class_counts(batch.example_ids, targets.wait())
        if counts:
            self._swing.add(counts)
        swing, ess = (
            self._swing.value,
            effective_share(weights.wait().numpy()) if weights is not None else None,
        )
        if self._ramp is not None:
            self._ramp.observe(losses.wait().float().numpy(), batch.keep_probability)
        if self._trained is not None:
            self._trained.see(batch.example_ids, losses.wait().float().numpy())
        if self._guard is not None:
            self._guard.observe(swing, ess)
        strength = self.strength if self._is_steady else None
        self.reading = Reading(
            swing, self._prediction_swing.value, ess, strength, self._guard.factor if self._guard else None
        )
        self._means.add(self.reading)
        self._warn_if_swinging(batch.step)

    def predicted(self, counts: NDArray[np.int32]) -> None:
        """Take in how often the selector's model predicts each class for the candidates of a lease; another
        width is ignored.
        """
        self._num_predicted = self._num_predicted or len(counts)
        if len(counts) == self._num_predicted:
            self._prediction_swing.add(counts)

    def _warn_if_swinging(self, step: int) -> None:
        swing, sway = self.reading.swing, self.reading.prediction_swing
        self._swinging.append(step >= LEARNING and is_swinging(swing, sway))
        if self._was_warned or sum(self._swinging) < ENOUGH:
            return
        self._was_warned = True
        knobs = [
            "raise selection.soften" if self._is_steady else "set selection.policy = 'steady'",
            "raise selection.keep",
        ]
        knobs += ["lower sync.interval"] if self._config.sync_interval > 1 else []
        by_how_much = f"the class shares of train batches vary {swing:.1f} times as much as by chance (swing)"
        if sway is not None:
            by_how_much += f", the classes that the model predicts {sway:.0f} times (prediction swing)"
        text = (
            f"the loop swings: at step {step} {by_how_much}: selection chases what training has already "
            "corrected. "
            f"Way out: {', or '.join(knobs)}"
        )
        log.warning("%s", text)
        self._events.write("warning", text=text)

    def summary(self) -> dict[str, float | None]:
        """Means over the run."""
        return {f"selection.{name}": self._means.of(name) for name in Reading._fields}

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {
            "ramp": self._ramp.state() if self._ramp else None,
            "guard": self._guard.factor if self._guard else None,
            "fresh": self._fresh.state() if self._fresh else None,
            "trained": self._trained.state() if self._trained else None,
            "swing": self._swing.state(),
            "prediction_swing": self._prediction_swing.state(),
            "swinging": [list(self._swinging), self._was_warned],
            "means": [self._means.totals.copy(), self._means.counts.copy()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        if self._ramp is not None:
            self._ramp.restore(state["ramp"])
        if self._guard is not None:
            self._guard.factor = state["guard"]
        if self._fresh is not None:
            self._fresh.restore(state["fresh"])
        if self._trained is not None:
            self._trained.restore(state["trained"])
        self._swing.restore(state["swing"])
        self._prediction_swing.restore(state["prediction_swing"])
        swinging, self._was_warned = state["swinging"]
        self._swinging.extend(swinging)
        self._means = _Means(*state["means"])


def _on_device(values: NDArray[Any], device: torch.device) -> torch.Tensor:
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)
