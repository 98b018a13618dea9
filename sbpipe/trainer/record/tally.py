"""Running totals of the numbers of steps: over the run, and over a window of steps. Both survive a resume."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from sbpipe.runs.spans import Stages, stages_together
from sbpipe.trainer.record.step_numbers import StepNumbers
from sbpipe.trainer.steering.health import Health


@dataclass
class Tally:
    """Totals of the run."""

    staleness: np.ndarray = field(default_factory=lambda: np.zeros(16, np.int64))
    age_sum: float = 0.0
    queue_sum: float = 0.0
    fast_sum: float = 0.0
    filled: int = 0
    trained: int = 0
    fidelity_sum: float = 0.0
    fidelity_count: int = 0
    error_sum: float = 0.0
    elapsed_s: float = 0.0
    evaluate_s: float = 0.0
    share: float = 0.0
    evaluations: int = 0
    window: dict[str, Any] = field(default_factory=dict)
    """The window that was open at the checkpoint."""

    def add(self, step: StepNumbers) -> None:
        """Count a step."""
        self.filled += step.filled
        self.trained += step.trained
        self.fast_sum += step.fast_sum
        self.age_sum += step.age_sum
        self.queue_sum += step.queue_sum
        if step.spearman is not None and step.score_error is not None:
            self.fidelity_sum += step.spearman
            self.fidelity_count += 1
            self.error_sum += step.score_error
        counts = step.staleness
        if len(counts) > len(self.staleness):
            self.staleness = np.pad(self.staleness, (0, len(counts) - len(self.staleness)))
        self.staleness[: len(counts)] += counts

    @property
    def fill_share(self) -> float:
        """The share of the trained examples that were filled in."""
        return self.filled / max(1, self.trained)

    def staleness_mean(self) -> float | None:
        """The mean over the selected examples; None if there are none."""
        total = int(self.staleness.sum())
        return float((self.staleness * np.arange(len(self.staleness))).sum() / total) if total else None

    def summary(self, *, is_two_rate: bool) -> dict[str, Any]:
        """Under their stable names."""
        counts = self.staleness
        total = int(counts.sum())
        selected = max(1, total)
        return {
            "fill.share": self.fill_share,
            "staleness.mean": self.staleness_mean(),
            "staleness.p95": int(np.searchsorted(np.cumsum(counts), 0.95 * total)) if total else None,
            "staleness.max": int(np.flatnonzero(counts)[-1]) if total else None,
            "staleness.age_mean": self.age_sum / selected,
            "staleness.queue_mean": self.queue_sum / selected,
            "staleness.fast_mean": self.fast_sum / selected if is_two_rate else None,
            "fidelity.spearman": self._of_fidelity(self.fidelity_sum),
            "fidelity.mean_error": self._of_fidelity(self.error_sum),
        }

    def _of_fidelity(self, total: float) -> float | None:
        return total / self.fidelity_count if self.fidelity_count else None


@dataclass
class Window:
    """Steps in a row that become one event."""

    first: int
    count: int = 0
    candidates: int = 0
    rate: float = 0.0
    loss_sum: float = 0.0
    loss_low: float = float("inf")
    loss_high: float = float("-inf")
    keep_sum: float = 0.0
    trained: int = 0
    filled: int = 0
    staleness_sum: int = 0
    staleness_max: int | None = None
    fast_sum: int = 0
    age_sum: int = 0
    queue_sum: int = 0
    fidelity_sum: float = 0.0
    fidelity_count: int = 0
    error_sum: float = 0.0
    health_sums: list[float] = field(default_factory=lambda: [0.0] * len(Health._fields))
    health_counts: list[int] = field(default_factory=lambda: [0] * len(Health._fields))
    stages: Stages = field(default_factory=dict)
    """Stage times of this window from earlier processes of the run."""

    def add(self, step: StepNumbers, health: Health) -> None:
        """Gather a step."""
        self.count += 1
        self.candidates, self.rate = step.candidates, step.rate
        self.loss_sum += step.loss
        self.loss_low, self.loss_high = min(self.loss_low, step.loss), max(self.loss_high, step.loss)
        self.keep_sum += step.keep_probability
        self.trained += step.trained
        self.filled += step.filled
        self.staleness_sum += step.staleness_sum
        self.fast_sum += step.fast_sum
        self.age_sum += step.age_sum
        self.queue_sum += step.queue_sum
        largest = step.staleness_max
        if largest is not None:
            self.staleness_max = max(largest, self.staleness_max or 0)
        if step.spearman is not None and step.score_error is not None:
            self.fidelity_sum += step.spearman
            self.fidelity_count += 1
            self.error_sum += step.score_error
        for k, value in enumerate(health):
            if value is not None:
                self.health_sums[k] += value
                self.health_counts[k] += 1

    def fields(self, stages: Stages, *, is_two_rate: bool) -> dict[str, Any]:
        """The fields of a `steps` event; `stages` is what this process has timed since the window began."""
        selected, fidelities = self.trained - self.filled, self.fidelity_count
        means = {
            name: _mean(total, count)
            for name, total, count in zip(Health._fields, self.health_sums, self.health_counts, strict=True)
        }
        return {
            "first": self.first,
            "step": self.first + self.count - 1,
            "count": self.count,
            "candidates": self.candidates,
            "loss": _mean(self.loss_sum, self.count),
            "loss_low": self.loss_low,
            "loss_high": self.loss_high,
            "rate": self.rate,
            "keep_probability": _mean(self.keep_sum, self.count),
            "trained": self.trained,
            "filled": self.filled,
            "staleness_mean": _mean(self.staleness_sum, selected),
            "staleness_max": self.staleness_max,
            "fast_staleness_mean": _mean(self.fast_sum, selected) if is_two_rate else None,
            "age_mean": _mean(self.age_sum, selected),
            "queue_mean": _mean(self.queue_sum, selected),
            "spearman": _mean(self.fidelity_sum, fidelities),
            "score_error": _mean(self.error_sum, fidelities),
            **means,
            "stages": stages_together(self.stages, stages),
        }

    def state(self, stages: Stages) -> dict[str, Any]:
        """For the checkpoint: a resume goes on with this window."""
        return {**asdict(self), "stages": stages_together(self.stages, stages)}


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None
