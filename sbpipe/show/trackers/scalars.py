"""The numbers of events that go to trackers, and their names there. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from sbpipe.runs.numbers import is_number, number
from sbpipe.runs.reader import is_taken_back

_STEP = {
    "loss": "train/loss",
    "rate": "train/rate",
    "keep_probability": "train/keep_probability",
    "staleness_mean": "train/staleness_mean",
    "staleness_max": "train/staleness_max",
    "fast_staleness_mean": "train/fast_staleness_mean",
    "age_mean": "train/age_mean",
    "queue_mean": "train/queue_mean",
    "spearman": "train/fidelity",
    "score_error": "train/score_error",
    "swing": "train/swing",
    "prediction_swing": "train/prediction_swing",
    "ess": "train/ess",
    "strength": "train/strength",
    "guard": "train/guard",
    "trust": "train/trust",
    "label_trust": "train/label_trust",
    "wrong_labels": "train/wrong_labels",
}
NAMES: dict[str, dict[str, str]] = {
    "step": _STEP,
    "steps": _STEP,
    "eval": {"error": "eval/error", "loss": "eval/loss", "metric": "eval/metric"},
    "progress": {
        "idle": "pipeline/trainer_idle",
        "selector_idle": "pipeline/selector_idle",
        "keep_rate": "pipeline/keep_rate",
        "queue": "pipeline/queue",
        "selectors": "pipeline/selectors",
        "candidates": "pipeline/candidates",
        "candidates_per_s": "pipeline/candidates_per_s",
        "worth_ess": "pipeline/worth_ess",
    },
}
"""From an event's kind and field to the name a tracker shows."""


def scalars_of(event: Mapping[str, Any]) -> dict[str, float]:
    """An event's numbers by name, the stages of a step as `time/STAGE_ms`; {} if it has none.

    An event that covers many steps gives their means.
    """
    names = NAMES.get(event.get("kind", ""), {})
    values = {name: float(event[field]) for field, name in names.items() if is_number(event.get(field))}
    spans = event.get("spans")
    if names and isinstance(spans, Mapping):
        values |= {
            f"time/{stage}_ms": 1000.0 * sum(filter(is_number, times[1::2])) for stage, times in spans.items()
        }
    stages, count = event.get("stages"), number(event, "count")
    if names and isinstance(stages, Mapping) and count:
        values |= {f"time/{stage}_ms": 1000.0 * told[1] / count for stage, told in stages.items() if told[1:]}
    return values


def without_taken_back(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Events without those that a later resume repeats: the later event of a step counts."""
    kept: list[Mapping[str, Any]] = []
    for event in events:
        if event.get("kind") == "resumed":
            kept = [earlier for earlier in kept if not is_taken_back(earlier, event.get("step", 0))]
        kept.append(event)
    return kept
