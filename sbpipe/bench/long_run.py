"""Makes a run directory of any length in minutes: nothing is trained, but the real writers write all files.

The trainer's telemetry and a selector's log get made-up steps and leases, on a clock of their own. Knows no
report.
"""

import json
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from sbpipe.config import Config, resolve, to_json
from sbpipe.records import Selection, TrainBatch
from sbpipe.runs.events import EventLog, plain
from sbpipe.runs.names.files import CONFIG, ENVIRONMENT, SELECTOR_EVENTS, SUMMARY, TRAINER_EVENTS
from sbpipe.runs.spans import Spans
from sbpipe.selector.answer_log import AnswerLog
from sbpipe.trainer.after_step import AfterStep
from sbpipe.trainer.engine import Engine
from sbpipe.trainer.evaluation import Evaluation
from sbpipe.trainer.record.telemetry import Telemetry
from sbpipe.trainer.steering.health import Health
from sbpipe.trainer.step_outcome import StepOutcome
from sbpipe.trainer.stream.score_kind import ScoreKind

STEP_S = 0.07
BATCH, KEEP, CLASSES = 128, 1 / 3, 10
EVALUATE_EVERY = 1000
BEGAN = 1_000.0
WALL_MINUS_CLOCK = 1.7e9
_TRAINER = {
    "wait": (0.0, 0.001),
    "receive": (0.002, 0.001),
    "view": (0.004, 0.006),
    "forward": (0.001, 0.02),
    "weigh": (0.021, 0.0002),
    "backward": (0.0212, 0.04),
    "optimizer": (0.0612, 0.004),
    "steer": (0.0652, 0.0004),
    "publish": (0.0656, 0.002),
    "log": (0.0676, 0.0002),
    "dispatch": (0.03, 0.001),
}
"""When each stage of a step begins after the step does, and how long it takes."""
_SELECTOR = {
    "idle": (0.0, 0.02),
    "apply": (0.02, 0.001),
    "view": (0.021, 0.008),
    "score": (0.029, 0.03),
    "select": (0.059, 0.001),
    "send": (0.06, 0.0005),
}


def write_long_run(path: Path, steps: int) -> Path:
    """A finished run of so many steps, one selector, a lease for each step."""
    path.mkdir(parents=True)
    config = resolve({"train.steps": steps, "train.batch_size": BATCH})
    (path / CONFIG).write_text(to_json(config))
    (path / ENVIRONMENT).write_text(json.dumps({"host": "simulated", "versions": {}, "devices": {}}))
    LongRun(path, config, steps).write()
    return path


class LongRun:
    """Both roles of a simulated run."""

    def __init__(self, path: Path, config: Config, steps: int, *, first_step: int = 0) -> None:
        self._path, self._steps, self._first_step = path, steps, first_step
        self._now = BEGAN
        self._stream = _stream(config)
        self._events = self._log(TRAINER_EVENTS, "trainer")
        self._spans, self._selector_spans = Spans(), Spans()
        self._selector_events = self._log(SELECTOR_EVENTS.format("simulated-1-0001"), "selector")
        self._answers = AnswerLog(self._selector_spans, self._selector_events)
        self.telemetry = Telemetry(
            self._events, self._spans, _engine(config, self._stream), process_began=BEGAN - 1.0
        )
        self._outcomes = Outcomes()
        self.telemetry_s = 0.0
        """Processor time of the trainer's telemetry."""

    def _log(self, name: str, role: str) -> EventLog:
        return EventLog(
            self._path / name, role, wall=lambda: self._now + WALL_MINUS_CLOCK, clock=lambda: self._now
        )

    def write(self) -> None:
        """From the first event to the summary."""
        self._events.write("start", mode="pipelined", policy="sb", batch_size=BATCH, seed=0)
        self._selector_events.write("built", selector="simulated-1-0001", device="cpu")
        self.telemetry.begin()
        for step in range(self._first_step, self._steps):
            self.take_step(step)
            if (step + 1) % EVALUATE_EVERY == 0:
                self._evaluate(step + 1)
        self.telemetry.flush()
        self._end()

    def resume(self, state: dict[str, Any], step: int) -> None:
        """Go on from the state of another process's telemetry."""
        self.telemetry.restore(state, startup_s=0.0)
        self._now = BEGAN + STEP_S * step
        self._outcomes.pass_over(step)
        self._events.write("resumed", step=step)

    def take_step(self, step: int) -> None:
        """One lease answered and one step taken."""
        begin = self._now
        for name, (after, lasts) in _SELECTOR.items():
            self._selector_spans.add(name, begin + after, lasts)
        self._answers.note(_selection(step))
        for name, (after, lasts) in _TRAINER.items():
            self._spans.add(name, begin + after, lasts)
        self._now = begin + STEP_S
        self._stream.steps_done = step + 1
        self._stream.ledger.num_considered = round(BATCH / KEEP) * (step + 1)
        self._stream.yielded.num_kept = BATCH * (step + 1)
        outcome = self._outcomes(step)
        outcome.health = Health(1.5, 4.0 + step % 7, 0.93, 0.8, 1.0, float(step % 3 > 0))
        begin_s = time.thread_time()
        self.telemetry.step(outcome, 0.1)
        self.telemetry.progress((step + 1) / self._steps)
        self.telemetry_s += time.thread_time() - begin_s

    def _evaluate(self, step: int) -> None:
        error = 0.05 + 0.85 / (1.0 + step / 20_000)
        evaluation = Evaluation(error, 2 * error, [error] * CLASSES)
        self.telemetry.evaluated(evaluation, step, round(BATCH / KEEP) * step)

    def _end(self) -> None:
        seconds = self._spans.total_s
        summary = {
            "status": "finished",
            "mode": "pipelined",
            "policy": "sb",
            "seed": 0,
            "wall_s": self._now - BEGAN,
            "train_s": self._now - BEGAN,
            "devices": 2,
            "selector.busy_s": sum(
                self._selector_spans.total_s[name] for name in ("view", "score", "select")
            ),
            **{f"trainer.{name}_s": seconds[name] for name in _TRAINER},
            **self.telemetry.summary(),
        }
        self.telemetry.progress(1.0, now=True)
        (self._path / SUMMARY).write_text(json.dumps(plain(summary)))
        self._events.write("summary", **summary)
        self.close()

    def close(self) -> None:
        """Write no more."""
        self._events.close()
        self._selector_events.close()


class Outcomes:
    """Outcomes of steps, from a few batches of scores and losses that are repeated."""

    def __init__(self, count: int = 61) -> None:
        rng = np.random.default_rng(0)
        losses = [rng.exponential(size=BATCH).astype(np.float32) for _ in range(count)]
        scores = [one + rng.normal(scale=0.3, size=BATCH).astype(np.float32) for one in losses]
        ages = [rng.integers(1, 4, BATCH) for _ in range(count)]
        self._pairs: Iterator[tuple[Any, Any, Any]] = cycle(zip(losses, scores, ages, strict=True))
        self._ids, self._probability = np.arange(BATCH), np.full(BATCH, KEEP, np.float32)
        self._target_keep = np.full(BATCH, KEEP)
        self._is_fill, self._no_fill = np.arange(BATCH) < 8, np.zeros(BATCH, bool)

    def pass_over(self, count: int) -> None:
        """Go on as if so many steps had been taken."""
        for _ in range(count):
            next(self._pairs)

    def __call__(self, step: int) -> StepOutcome:
        """The outcome of a step; a batch in 16 has fills, the loss falls slowly."""
        losses, scores, ages = next(self._pairs)
        version = np.maximum(step - ages, 0)
        batch = TrainBatch(
            step=step,
            example_ids=self._ids,
            epochs=self._ids,
            scores=scores,
            keep_probability=self._probability,
            version=version,
            arrived_at_step=np.minimum(version + 1, step),
            candidates=round(BATCH / KEEP) * (step + 1),
            target_keep=self._target_keep,
            is_fill=self._no_fill if step % 16 else self._is_fill,
        )
        mean_loss = float(losses[step % BATCH]) / (1.0 + step / 20_000)
        return cast(
            StepOutcome,
            SimpleNamespace(batch=batch, losses=losses, mean_loss=mean_loss, class_counts=[13] * CLASSES),
        )


def _selection(lease: int) -> Selection:
    return Selection(lease, max(0, lease - 1), *_ANSWER)


_ANSWER = (
    np.zeros(round(BATCH / KEEP), np.float32),
    np.arange(BATCH, dtype=np.int32),
    np.full(round(BATCH / KEEP), KEEP, np.float32),
)


def _stream(config: Config) -> Any:
    """The part of the stream that telemetry uses."""
    return SimpleNamespace(
        batch_size=BATCH,
        keep=KEEP,
        leftover=0,
        now=SimpleNamespace(on_hand=BATCH),
        steps_done=0,
        versions=SimpleNamespace(fast_interval=0),
        yielded=SimpleNamespace(num_kept=0),
        ledger=SimpleNamespace(num_considered=0, num_selected=0, num_trained=0, num_expired=0),
        table=SimpleNamespace(recent=np.zeros(0, np.float32)),
        kind=ScoreKind(config),
    )


def _engine(config: Config, stream: Any) -> Engine:
    """The part of the engine that telemetry uses."""
    roster = SimpleNamespace(
        peers={"simulated": None},
        gone=(),
        ready=lambda: [None],
        ready_s=lambda *_: 0.0,
        total=lambda _: 0.0,
        mean=lambda _: None,
        precisions=lambda: None,
    )
    scores = {
        "quantiles": [round(0.03 * percentile, 4) for percentile in range(101)],
        "class_considered": [1000] * CLASSES,
        "class_kept": [333] * CLASSES,
        "times_kept": [500, 300, 150, 50],
    }
    census = SimpleNamespace(take=lambda: scores)
    after = AfterStep(Spans())
    parts = SimpleNamespace(config=config, stream=stream, roster=roster, census=census, after=after)
    return cast(Engine, parts)
