"""A run's test error over honest time, and when it reached a target. Pure but for the record it reads.

Time counts from the moment the run's process was started, so it includes start-up: importing, loading data,
building both roles. It excludes the seconds spent measuring the test error, because evaluating is not
training. Time is known at evaluations only: an error reached between two of them counts from the later one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sbpipe.runs.numbers import number
from sbpipe.runs.reader import Run


@dataclass(frozen=True)
class Point:
    """One measurement of the test error."""

    time_s: float
    error: float
    """Share of the test set that was classified wrongly."""
    trained: float = 0
    """Examples backpropagated so far."""
    candidates: float = 0


def curve_of(run: Run, started: float | None = None) -> tuple[list[Point], list[str]]:
    """A run's evaluations, and notes about them; `started` is the wall clock at the start of its process.

    Without `started`, or after a resume (whose pause is not training), time is start-up plus the trainer's
    clock.
    """
    evals = [event for event in run.of("eval") if number(event, "error") is not None]
    if not evals:
        return [], ["has no evaluation (is eval.every 0, or has it only begun?)"]
    notes = (
        []
        if all("evaluate_s" in event for event in evals)
        else ["does not say how long measuring took: it is in its times"]
    )
    startup_s, note = _startup_s(run, evals[0])
    notes += [note] if note and started is None else []
    if run.of("resumed"):
        started = None
    return [_point(run, event, startup_s, started) for event in evals], notes


def time_to_target(curve: Iterable[Point], error: float) -> float | None:
    """Seconds until the first evaluation at or below an error; None if there is none."""
    return next((point.time_s for point in curve if point.error <= error), None)


def _point(run: Run, event: dict[str, Any], startup_s: float, started: float | None) -> Point:
    began = number(event, "startup_s")
    own_clock = (startup_s if began is None else began) + (number(event, "elapsed_s") or 0.0)
    at = number(event, "t")
    since_start = own_clock if started is None or at is None else at - started
    trained = number(event, "trained")
    return Point(
        # The wall clock may be set back in the middle of a run.
        time_s=round(max(0.0, since_start - (number(event, "evaluate_s") or 0.0)), 4),
        error=event["error"],
        trained=_trained(run, event) if trained is None else trained,
        candidates=number(event, "candidates") or 0.0,
    )


def _trained(run: Run, event: dict[str, Any]) -> float:
    """Examples backpropagated, computed for a run that does not state them."""
    return (number(event, "step") or 0) * (number({"size": run.setting("train.batch_size")}, "size") or 0)


def _startup_s(run: Run, first: dict[str, Any]) -> tuple[float, str]:
    """Seconds from the start of the trainer's process to its first step, and a note if some are missing."""
    stated = number(run.summary, "startup_s")
    if stated is not None:
        return stated, ""
    # The run has not ended, or does not state it: computed from wall clocks, as far back as they go.
    first_step = (number(first, "t") or 0.0) - (number(first, "elapsed_s") or 0.0)
    wall_s = number(run.summary, "wall_s")
    if wall_s is not None and run.of("summary") and not run.of("resumed"):
        return max(0.0, first_step - ((number(run.of("summary")[-1], "t") or 0.0) - wall_s)), ""
    if run.of("start"):
        return max(0.0, first_step - (number(run.of("start")[0], "t") or first_step)), (
            "does not say when its process began: imports are not in its times"
        )
    return 0.0, "does not say when it began: start-up is not in its times"
