"""The followed runs in the text format that Prometheus scrapes (version 0.0.4). A pure function of the runs'
lines.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sbpipe.show.live.status import STATES
from sbpipe.show.terminal import LOOP

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GAUGES = (
    ("sbpipe_share", "share", "Share of the run's budget that is done, 0 to 1."),
    ("sbpipe_step", "step", "Steps trained."),
    ("sbpipe_candidates", "candidates", "Candidates considered."),
    ("sbpipe_loss", "loss", "Training loss of the last step, mean of the batch."),
    ("sbpipe_test_error", "error", "Last test error, 0 to 1."),
    ("sbpipe_keep_rate", "keep_rate", "Share of candidates kept, 0 to 1."),
    ("sbpipe_staleness_steps", "staleness", "Mean staleness of trained examples, in steps."),
    ("sbpipe_swing_ratio", "swing", LOOP["swing"][1]),
    ("sbpipe_effective_sample_ratio", "ess", LOOP["ess"][1]),
    ("sbpipe_strength", "strength", LOOP["strength"][1]),
    ("sbpipe_guard", "guard", LOOP["guard"][1]),
    ("sbpipe_trainer_idle_ratio", "idle", "Share of its time that the trainer waited, 0 to 1."),
    ("sbpipe_selector_idle_ratio", "selector_idle", "Share of their time that the selectors waited, 0 to 1."),
    ("sbpipe_selectors_ready", "selectors", "Selectors that are ready."),
    ("sbpipe_queue_examples", "queue", "Kept examples that wait to be trained."),
    ("sbpipe_candidates_per_second", "candidates_per_s", "Candidates considered per second of training."),
    ("sbpipe_elapsed_seconds", "elapsed_s", "Seconds of training so far."),
    ("sbpipe_left_seconds", "left_s", "Seconds of training left, as estimated."),
)
"""Name, field of a run's line, help; a run that has no such number yet has no such sample."""


def metrics_text(heads: Sequence[Mapping[str, Any]], now: float) -> str:
    """One gauge after the other, a sample per run."""
    lines: list[str] = []
    for name, key, meaning in GAUGES:
        lines += _family(
            name, meaning, [(_labels(run=run["name"]), run[key]) for run in heads if run.get(key) is not None]
        )
    ages = [
        (_labels(run=run["name"]), max(0.0, now - run["last_t"]))
        for run in heads
        if run.get("last_t") is not None
    ]
    lines += _family("sbpipe_last_event_age_seconds", "Seconds since the run's last event.", ages)
    up = [(_labels(run=run["name"]), int(run["state"] == "running")) for run in heads]
    lines += _family("sbpipe_up", "1 while the run goes on, 0 when it waits, is stalled or has ended.", up)
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
