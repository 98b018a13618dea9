"""One run as a comparison sees it: its curve of test errors over honest time, how it ended, its numbers. Knows no picture."""

from dataclasses import dataclass, field
from typing import Any

from sbpipe.logbook import Run


@dataclass(frozen=True)
class Evaluation:
    """One measurement of the test error."""

    time_s: float
    """Wall-clock seconds since the start, start-up included, measuring excluded."""
    trained: float
    """Examples backpropagated so far."""
    candidates: float
    error: float
    """Share of the test set that was classified wrongly."""


@dataclass(frozen=True)
class Trial:
    """One run of an arm."""

    name: str
    seed: int | None
    status: str
    """`finished`, `failed`, `unfinished` (at work, or dead), or `planned` if it has not begun."""
    curve: list[Evaluation]
    numbers: dict[str, Any]
    """Its summary, by the names of `docs/events.md`."""
    notes: list[str] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        """Whether it came to its end, so that its last error is a final one."""
        return self.status == "finished"

    @property
    def final_error(self) -> float | None:
        """The test error at the end; None unless it finished."""
        if not self.is_finished:
            return None
        stated = number(self.numbers, "eval.error")
        return stated if stated is not None else self.curve[-1].error if self.curve else None

    def time_to(self, error: float) -> float | None:
        """Seconds until the first evaluation at or below an error; None if it never got there."""
        return next((point.time_s for point in self.curve if point.error <= error), None)


def number(numbers: dict[str, Any], name: str) -> float | None:
    """A number by its name; None if it is missing, null or no number."""
    value = numbers.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def trial_of_run(run: Run, name: str) -> Trial:
    """A run directory as a trial."""
    status = str(run.summary.get("status") or ("failed" if run.of("failed") else "unfinished"))
    curve, notes = curve_of(run)
    seed = run.config.get("seed", run.summary.get("seed"))
    return Trial(name, seed, status, curve, run.summary, notes)


def curve_of(run: Run, started: float | None = None) -> tuple[list[Evaluation], list[str]]:
    """A run's evaluations, and what must be said of them; `started` is the wall clock when its process was spawned, if known.

    Without it, or after a resume (whose pause is not training), time is start-up plus the trainer's own clock.
    """
    evals = [event for event in run.of("eval") if number(event, "error") is not None]
    if not evals:
        return [], ["has no evaluation (is eval.every 0, or has it only begun?)"]
    notes = [] if all("evaluate_s" in event for event in evals) else ["does not say how long measuring took: it is in its times"]
    startup_s, note = _startup_s(run, evals[0])
    notes += [note] if note and started is None else []
    batch_size = run.setting("train.batch_size", 0)
    curve = []
    for event in evals:
        since_start = startup_s + (number(event, "elapsed_s") or 0.0)
        if started is not None and not run.of("resumed"):
            since_start = event["t"] - started
        trained = number(event, "trained")
        curve.append(
            Evaluation(
                time_s=max(0.0, since_start - (number(event, "evaluate_s") or 0.0)),
                trained=trained if trained is not None else event.get("step", 0) * batch_size,
                candidates=number(event, "candidates") or 0.0,
                error=event["error"],
            )
        )
    return curve, notes


def _startup_s(run: Run, first: dict[str, Any]) -> tuple[float, str]:
    """Seconds from the start of the trainer's process to its first step, and a note if they are not all known."""
    stated = number(run.summary, "startup_s")
    if stated is not None:
        return stated, ""
    first_step = first["t"] - (number(first, "elapsed_s") or 0.0)
    wall_s = number(run.summary, "wall_s")
    if wall_s is not None and run.of("summary") and not run.of("resumed"):
        return max(0.0, first_step - (run.of("summary")[-1]["t"] - wall_s)), ""
    if run.of("start"):
        return max(0.0, first_step - run.of("start")[0]["t"]), "does not say when its process began: imports are not in its times"
    return 0.0, "does not say when it began: start-up is not in its times"
