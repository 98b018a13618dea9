"""Is the loop healthy? Numbers of each step, means over a run, and warnings when selection swings or guesses.

It serves every policy and decides nothing. Knows neither leases nor the model.
"""

import logging
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sbpipe.config import Config
from sbpipe.runs.events import EventLog
from sbpipe.trainer.steering.swing import Swing
from sbpipe.trainer.stream.doubts import Doubt

log = logging.getLogger("sbpipe.trainer")

FOLLOWS, SWAYS = 2.0, 35.0
"""A step counts as swinging when the swing of its batches and the prediction swing of the model are above
these.
"""
TOO_MUCH = 6.0
"""The same for the swing alone, where the model's predictions are not known."""
LEARNING = 96
"""Number of first steps that never count: healthy runs swing in them too."""
ENOUGH, PATIENCE = 80, 128
"""This many of the last PATIENCE steps must swing before a warning: 96 did in the calmest bad run measured,
56 in the wildest good one.
"""


_DOUBTED = ("scores", "labels")
_GEOMETRIC, _LEAST = ("swing", "prediction_swing"), 1e-3


class Health(NamedTuple):
    """The state of the loop after a step; None = does not apply, or not yet known."""

    swing: float | None = None
    prediction_swing: float | None = None
    ess: float | None = None
    strength: float | None = None
    guard: float | None = None
    trust: float | None = None
    label_trust: float | None = None
    wrong_labels: float | None = None


def is_swinging(swing: float | None, prediction_swing: float | None) -> bool:
    """Whether a step swings. One sign alone occurs in good runs too; both for long, only in bad ones."""
    if swing is None:
        return False
    return swing > TOO_MUCH if prediction_swing is None else swing > FOLLOWS and prediction_swing > SWAYS


@dataclass
class _Means:
    """Means over a run; geometric for swings, where the first steps would otherwise outweigh all others."""

    totals: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, health: Health) -> None:
        for name, value in health._asdict().items():
            if value is not None:
                added = math.log(max(value, _LEAST)) if name in _GEOMETRIC else value
                self.totals[name] = self.totals.get(name, 0.0) + added
                self.counts[name] = self.counts.get(name, 0) + 1

    def of(self, name: str) -> float | None:
        if name not in self.counts:
            return None
        mean = self.totals[name] / self.counts[name]
        return math.exp(mean) if name in _GEOMETRIC else mean


class HealthMonitor:
    """Follows the swing of batches and of predictions, and warns once when both have swung for long."""

    def __init__(self, config: Config, events: EventLog, *, is_steered: bool) -> None:
        self._config, self._events, self._is_steered = config, events, is_steered
        self._swing, self._prediction_swing = Swing(), Swing()
        self._num_predicted: int | None = None
        self._means = _Means()
        self._swinging: deque[bool] = deque(maxlen=PATIENCE)
        self._was_warned = False
        self._passes_over = False
        self._doubts, self._first_doubts = dict.fromkeys(_DOUBTED, ""), dict.fromkeys(_DOUBTED, "")
        self.last = Health()

    def count(self, class_counts: list[int]) -> float | None:
        """Take in the classes of a train batch; returns the swing of the last batches."""
        if class_counts:
            self._swing.add(class_counts)
        return self._swing.value

    def predicted(self, counts: NDArray[np.int32]) -> None:
        """Take in how many candidates of a lease are predicted to be of each class."""
        self._num_predicted = self._num_predicted or len(counts)
        if len(counts) == self._num_predicted:
            self._prediction_swing.add(counts)

    def note(
        self,
        step: int,
        *,
        swing: float | None,
        ess: float | None,
        strength: float | None,
        guard: float | None,
        trust: float | None = None,
        label_trust: float | None = None,
        wrong_labels: float | None = None,
    ) -> Health:
        """Note the numbers of a step; `swing` is what `count` returned for it."""
        sway = self._prediction_swing.value
        self.last = Health(swing, sway, ess, strength, guard, trust, label_trust, wrong_labels)
        self._means.add(self.last)
        self._warn_if_swinging(step)
        return self.last

    def doubt(self, step: int, subject: str, reason: str) -> None:
        """Note why scores or labels are not trusted; "" = they are. The first doubt is a warning, later ones
        are notes.
        """
        if bool(reason) != bool(self._doubts[subject]):
            is_followed = self._is_steered and self._config.selection.trust
            words = _words_about_labels if subject == "labels" else _words_about_scores
            text = f"at step {step} {words(reason, self._config.selection.policy, is_followed=is_followed)}"
            is_news = bool(reason) and not self._first_doubts[subject]
            self._first_doubts[subject] = self._first_doubts[subject] or reason
            log.log(logging.WARNING if is_news else logging.INFO, "%s", text)
            self._events.write("warning" if is_news else "note", text=text)
        self._doubts[subject] = reason

    def passes_over(self, step: int, doubt: Doubt | None, wrong: float | None) -> None:
        """Note, once, that candidates with probably wrong labels are passed over from now on."""
        if doubt is None or self._passes_over:
            return
        self._passes_over = True
        text = (
            f"at step {step} {100 * (wrong or 0.0):.0f} % of the labels look wrong: candidates whose loss "
            f"stays above {doubt.above:.2f}, that of a guess, from one epoch to the next are passed over"
        )
        log.info("%s", text)
        self._events.write("passing over", step=step, wrong_labels=wrong, above=doubt.above)

    def _warn_if_swinging(self, step: int) -> None:
        swing, sway = self.last.swing, self.last.prediction_swing
        self._swinging.append(step >= LEARNING and is_swinging(swing, sway))
        if self._was_warned or sum(self._swinging) < ENOUGH:
            return
        self._was_warned = True
        knobs = [
            "raise selection.soften" if self._is_steered else "set selection.policy = 'steady'",
            "raise selection.keep",
        ]
        knobs += ["lower sync.interval"] if self._config.sync_interval > 1 else []
        by_how_much = f"the make-up of train batches varies {swing:.1f} times as much as by chance (swing)"
        if sway is not None:
            by_how_much += f", the classes that the model predicts {sway:.0f} times (prediction swing)"
        text = (
            f"the loop swings: at step {step} {by_how_much}: selection chases what training has already "
            "corrected. "
            f"Way out: {', or '.join(knobs)}"
        )
        log.warning("%s", text)
        self._events.write("warning", text=text)

    def summary(self) -> dict[str, Any]:
        """Means over the run, how many labels look wrong, and why scores and labels were doubted first."""
        means = {f"selection.{name}": self._means.of(name) for name in Health._fields}
        return means | {
            "selection.wrong_labels": self.last.wrong_labels,
            "selection.doubt": self._first_doubts["scores"] or None,
            "selection.label_doubt": self._first_doubts["labels"] or None,
        }

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {
            "swing": self._swing.state(),
            "prediction_swing": self._prediction_swing.state(),
            "swinging": [list(self._swinging), self._was_warned],
            "means": [self._means.totals.copy(), self._means.counts.copy()],
            "doubts": [self._doubts.copy(), self._first_doubts.copy()],
            "passes_over": self._passes_over,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._swing.restore(state["swing"])
        self._prediction_swing.restore(state["prediction_swing"])
        swinging, self._was_warned = state["swinging"]
        self._swinging.extend(swinging)
        self._means = _Means(*state["means"])
        self._doubts, self._first_doubts = (dict(doubts) for doubts in state["doubts"])
        self._passes_over = state.get("passes_over", False)


def _words_about_scores(reason: str, policy: str, *, is_followed: bool) -> str:
    if not reason:
        return "scores say something again: selection goes by them"
    consequence = (
        "Candidates are chosen uniformly until they do"
        if is_followed
        else f"Policy {policy!r} goes by them all the same; 'steady' would choose uniformly until they do"
    )
    return f"scores say nothing about losses: {reason}. {consequence}"


def _words_about_labels(reason: str, policy: str, *, is_followed: bool) -> str:
    consequence = (
        "The more there are, the more uniformly candidates are chosen; 'spread' passes them over instead, "
        "once it has seen all candidates"
        if is_followed
        else f"Policy {policy!r} goes by its scores all the same; 'spread' would choose more uniformly"
    )
    return f"labels do not fit their examples: {reason}, as the model ranks them anywhere. {consequence}"
