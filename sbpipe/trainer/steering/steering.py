"""What fresh losses decide: how sharply the next leases choose, and what each trained example weighs.

It combines ramp, fresh weights, guard and trust for a steered policy, and keeps the loop's health for every
policy. It knows neither leases nor sockets nor the model. On an accelerator it reads losses one step late, so
that it never waits for the device; under a logical clock it waits where the next selection depends on them.
Before a checkpoint it reads what is still unread.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from sbpipe.config import Config
from sbpipe.machine.copies import uploads_to
from sbpipe.records import Classes, Predicted, TrainBatch
from sbpipe.runs.events import EventLog
from sbpipe.selection import TrainedLosses
from sbpipe.trainer.steering.fresh import FreshWeights, Recent, effective_share
from sbpipe.trainer.steering.groups import ScoreGroups
from sbpipe.trainer.steering.guard import Guard
from sbpipe.trainer.steering.health import HealthMonitor
from sbpipe.trainer.steering.ramp import Ramp
from sbpipe.trainer.steering.trust import Trust
from sbpipe.trainer.step import Weigh
from sbpipe.trainer.step_outcome import StepOutcome
from sbpipe.trainer.stream.doubts import Doubt
from sbpipe.trainer.stream.score_kind import ScoreKind

LONGEST_MEMORY = 4096
"""The most fresh losses that weights are computed from: every step goes through all of them."""


class Terms(NamedTuple):
    """What fresh losses ask of the next leases."""

    strength: float
    """How sharply they choose by scores that will be old when trained."""
    doubt: Doubt | None
    """How they pass over candidates with probably wrong labels; None = they do not."""
    labels_look_wrong: bool
    """Whether labels look wrong, also where nothing is done about it."""


class _Taken(NamedTuple):
    """A step whose numbers may still be on their way from the device."""

    outcome: StepOutcome
    weights: torch.Tensor | None
    """The weights of its examples, where they are on the host."""
    predicted: Sequence[Predicted]


class FreshWeigher:
    """Weighs one batch: by its own fresh losses, or a rank's share of it by those of the steps before."""

    def __init__(self, steering: "Steering", fresh: FreshWeights, batch: TrainBatch) -> None:
        self._steering, self._fresh, self._batch = steering, fresh, batch

    def __call__(self, losses: torch.Tensor) -> torch.Tensor:
        """The weight of each example, from the losses of the whole batch."""
        return self._steering.weigh_fresh(self._fresh, self._batch, losses)

    def recent(self) -> Recent | None:
        """What weighs the batch without its own losses; None before the first step."""
        batch, steering = self._batch, self._steering
        return self._fresh.recent(
            batch.keep_probability, steering.strength, steering.classes_of(batch), keep=batch.target_keep
        )


class Steering:
    """From the fresh losses of each step to the strength of the next leases and the weights of a batch."""

    def __init__(
        self,
        config: Config,
        classes: Classes | None,
        events: EventLog,
        trained: TrainedLosses | None = None,
        *,
        kind: ScoreKind | None = None,
    ) -> None:
        """`classes` are those of all examples, where known; `trained` is told all losses, for `infobatch`;
        `kind` tells what the scores are (by default, by the settings alone).
        """
        selection = config.selection
        self._trained = trained
        self._config = config
        self._kind = kind or ScoreKind(config)
        self._classes = classes if selection.history_by == "class" else None
        self._is_steered = selection.traits.is_steered
        by_loss = selection.traits.sharpens_by_loss
        window = max(2 * config.train.batch_size, min(selection.history, LONGEST_MEMORY))
        self._ramp = Ramp(2 * config.train.batch_size) if by_loss and selection.ramp else None
        self._guard = Guard() if self._is_steered and selection.guard else None
        self._fresh = FreshWeights(window=window) if by_loss and selection.reweight else None
        self._trust = Trust(_largest_share(classes)) if selection.traits.needs_scores else None
        # Under a clock, where the next selection depends on these losses: always on those of the same step.
        self._is_immediate = config.is_clocked and (self._is_steered or trained is not None)
        self._pending: _Taken | None = None
        self._weights: torch.Tensor | None = None
        self._groups = ScoreGroups()
        self.health = HealthMonitor(config, events, is_steered=self._is_steered)

    @property
    def strength(self) -> float:
        """How sharply fresh selection would choose now: the target of the weights."""
        return self._strength(self._trust.labels.factor) if self._trust is not None else self._strength(1.0)

    def _strength(self, label_trust: float) -> float:
        if not self._is_steered:
            return 1.0
        strength = self._ramp.strength if self._ramp else 1.0
        if self._trust is not None and self._config.selection.trust:
            strength *= self._trust.factor * label_trust
        return strength * (self._guard.factor if self._guard else 1.0)

    @property
    def proposal(self) -> float:
        """How sharply the next leases choose by scores that will be old: `strength`, softened as
        configured.
        """
        return self.strength * (1.0 - self._config.selection.soften) if self._is_steered else 1.0

    @property
    def doubt(self) -> Doubt | None:
        """How the next leases pass over candidates with probably wrong labels; None = they do not."""
        selection = self._config.selection
        if self._trust is None or not (selection.trust and selection.traits.chooses_sets):
            return None
        # The bound, log C, holds for cross entropy only.
        above = self._trust.labels.doubt_above if self._kind.are_entropy else None
        if above is None:
            return None
        # Where wrong labels are passed over, selection need not turn uniform because of them.
        return Doubt(self._strength(1.0) * (1.0 - selection.soften), above)

    @property
    def terms(self) -> Terms:
        """What the next leases are granted by."""
        labels_look_wrong = self._trust is not None and self._trust.labels.look_wrong
        return Terms(self.proposal, self.doubt, labels_look_wrong)

    def weigher(self, batch: TrainBatch) -> Weigh | None:
        """From the fresh losses of a batch to the weights of its examples; None = all count alike."""
        fresh, most = self._fresh, self._config.selection.unbiased
        if self._trained is not None:
            # as InfoBatch does: an example that could have been dropped counts for those that were
            most = math.inf
        if fresh is None and most:
            return lambda losses: uploads_to(losses.device).together([self._unbiased(batch, most)])[0]
        if fresh is None:
            return None
        return FreshWeigher(self, fresh, batch)

    def weigh_fresh(self, fresh: FreshWeights, batch: TrainBatch, losses: torch.Tensor) -> torch.Tensor:
        """The weights of a batch by its fresh losses, which are remembered."""
        classes = self.classes_of(batch)
        known = [batch.keep_probability] if classes is None else [batch.keep_probability, classes]
        keep_probability, *rest = uploads_to(losses.device).together([*map(torch.from_numpy, known)])
        groups = rest[0] if rest else None
        self._weights = fresh(losses, keep_probability, self.strength, groups, keep=batch.target_keep)
        return self._weights

    def classes_of(self, batch: TrainBatch) -> Classes | None:
        """The classes within which a batch's losses are ranked; None = all together."""
        return None if self._classes is None else self._classes[batch.example_ids]

    def _unbiased(self, batch: TrainBatch, most: float) -> torch.Tensor:
        """keep / chance, cut off: in expectation the mean gradient of all (`infobatch`: 1 / chance)."""
        numerator = np.float32(1.0) if self._trained is not None else batch.target_keep.astype(np.float32)
        self._weights = torch.from_numpy(np.minimum(numerator / batch.keep_probability, np.float32(most)))
        return self._weights

    @property
    def far_weights(self) -> torch.Tensor | None:
        """The weights of the last batch, if they are on the device: they are copied with the losses."""
        is_far = self._weights is not None and self._weights.device.type != "cpu"
        return self._weights if is_far else None

    def observe(self, outcome: StepOutcome, predicted: Sequence[Predicted] = ()) -> None:
        """Take in a step. It steers at once on the CPU and under a clock, else when the next step comes.

        `predicted` is what selectors' models predicted of the candidates before it.
        """
        weights = self._weights if self.far_weights is None else None
        taken: _Taken | None = _Taken(outcome, weights, predicted)
        if not (outcome.is_here or self._is_immediate):
            taken, self._pending = self._pending, taken
        if taken is not None:
            self._take(taken)

    def settle(self) -> None:
        """Take in the step that is still unread; waits for the device."""
        taken, self._pending = self._pending, None
        if taken is not None:
            self._take(taken)

    def _take(self, taken: _Taken) -> None:
        outcome, weights, predicted = taken
        batch = outcome.batch
        for told in predicted:
            self.health.predicted(told.by_class)
        swing = self.health.count(outcome.class_counts or self._groups.count(batch.scores))
        counted = outcome.weights if weights is None else weights.numpy()
        ess = None if counted is None else effective_share(counted)
        if self._ramp is not None:
            self._ramp.observe(outcome.losses, batch.keep_probability)
        if self._trained is not None:
            self._trained.see(batch.example_ids, outcome.losses)
        if self._guard is not None:
            self._guard.observe(swing, ess)
        if self._trust is not None:
            self._trust.observe(
                batch.scores, outcome.losses, batch.keep_probability, predicted, outcome.class_counts
            )
            self.health.doubt(batch.step, "scores", self._trust.reason)
            self.health.doubt(batch.step, "labels", self._trust.labels.reason)
            self.health.passes_over(batch.step, self.doubt, self._trust.labels.wrong)
        outcome.health = self.health.note(
            batch.step,
            swing=swing,
            ess=ess,
            strength=self._applied_strength(batch) if self._is_steered else None,
            guard=self._guard.factor if self._guard else None,
            trust=self._trust.factor if self._trust else None,
            label_trust=self._trust.labels.factor if self._trust else None,
            wrong_labels=self._trust.labels.wrong if self._trust else None,
        )

    def _applied_strength(self, batch: TrainBatch) -> float:
        """The present strength for candidates like those of this batch: in the first epoch none has a last
        score.
        """
        doubt = self.doubt
        return self.strength if doubt is None or batch.epochs.min() < 1 else doubt.strength

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        self.settle()
        return {
            "ramp": self._ramp.state() if self._ramp else None,
            "guard": self._guard.state() if self._guard else None,
            "fresh": self._fresh.state() if self._fresh else None,
            "trained": self._trained.state() if self._trained else None,
            "trust": self._trust.state() if self._trust else None,
            "health": self.health.state(),
            "groups": self._groups.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        if self._ramp is not None:
            self._ramp.restore(state["ramp"])
        if self._guard is not None:
            self._guard.restore(state["guard"])
        if self._fresh is not None:
            self._fresh.restore(state["fresh"])
        if self._trained is not None:
            self._trained.restore(state["trained"])
        if self._trust is not None:
            self._trust.restore(state["trust"])
        self.health.restore(state["health"])
        self._groups.restore(state.get("groups", ()))


def _largest_share(classes: Classes | None) -> float | None:
    """The share of the most frequent class; None where classes are not known before examples are loaded."""
    return None if classes is None or not len(classes) else float(np.bincount(classes).max() / len(classes))
