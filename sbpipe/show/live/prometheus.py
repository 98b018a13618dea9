"""The followed runs in the text format that Prometheus scrapes (version 0.0.4). Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sbpipe.runs.names import field_of
from sbpipe.show.live.status import STATES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GAUGES = {
    "share": "sbpipe_share",
    "step": "sbpipe_step",
    "candidates": "sbpipe_candidates",
    "loss": "sbpipe_loss",
    "error": "sbpipe_test_error",
    "keep_rate": "sbpipe_keep_rate",
    "staleness": "sbpipe_staleness_steps",
    "swing": "sbpipe_swing_ratio",
    "ess": "sbpipe_effective_sample_ratio",
    "strength": "sbpipe_strength",
    "guard": "sbpipe_guard",
    "trust": "sbpipe_trust",
    "worth_ess": "sbpipe_worth_ess_ratio",
    "worth_ess_error": "sbpipe_worth_ess_error",
    "idle": "sbpipe_trainer_idle_ratio",
    "selector_idle": "sbpipe_selector_idle_ratio",
    "selectors": "sbpipe_selectors_ready",
    "queue": "sbpipe_queue_examples",
    "candidates_per_s": "sbpipe_candidates_per_second",
    "elapsed_s": "sbpipe_elapsed_seconds",
    "left_s": "sbpipe_left_seconds",
}
"""Field of `progress` to the gauge's name; a run without this number has no sample."""


def metrics_text(heads: Sequence[Mapping[str, Any]], now: float) -> str:
    """One gauge after the other, a sample per run."""
    lines: list[str] = []
    for key, name in GAUGES.items():
        field = field_of("progress", key)
        samples = [(_labels(run=run["name"]), run[key]) for run in heads if run.get(key) is not None]
        lines += _family(name, f"{field.label or field.name}, {field.unit}: {field.meaning}", samples)
    ages = [
        (_labels(run=run["name"]), max(0.0, now - run["last_t"]))
        for run in heads
        if run.get("last_t") is not None
    ]
    lines += _family("sbpipe_last_event_age_seconds", "Seconds since the run's last event.", ages)
    up = [(_labels(run=run["name"]), int(run["state"] == "running")) for run in heads]
    lines += _family("sbpipe_up", "1 while the run trains, 0 when it waits, is stalled or has ended.", up)
    states = [
        (_labels(run=run["name"], state=state), int(run["state"] == state))
        for run in heads
        for state in STATES
    ]
    lines += _family("sbpipe_run_state", "1 for the state the run is in.", states)
    return "\n".join(lines) + "\n"


def _family(name: str, meaning: str, samples: Sequence[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} gauge"
    for labels, value in samples:
        yield f"{name}{labels} {value!r}"


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
