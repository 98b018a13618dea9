"""The page's state of one run: latest numbers and thinned curves, from its events. Reads no file."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from sbpipe.runs.names import IN_SUMMARY, KINDS
from sbpipe.runs.numbers import is_number, number
from sbpipe.show.live.series import Rule, Series
from sbpipe.show.live.timeline import Timeline

Event = Mapping[str, Any]

NUM_WARNINGS = 50
NUM_SELECTORS = 50
ENDINGS = ("finished", "stopped", "failed")
_X: dict[str, Rule] = {"step": "last", "candidates": "last", "time": "last"}
COLUMNS: dict[str, dict[str, Rule]] = {
    "steps": _X | {"loss": "mean"},
    "evals": _X | {"error": "mean"},
    "progress": _X | {"idle": "mean", "selector_idle": "mean", "candidates_per_s": "mean"},
}
"""The curves kept of a run, each over step, candidates and seconds of training."""
_LATEST = tuple(field.name for field in KINDS["progress"].fields)


class RunState:
    """Everything known of a run from the events so far."""

    def __init__(self) -> None:
        self.num_events = 0
        self.last_t: float | None = None
        self.ending: str | None = None
        self.start: dict[str, Any] = {}
        self.latest: dict[str, float | None] = {}
        self.series = {name: Series(columns) for name, columns in COLUMNS.items()}
        self.timeline = Timeline()
        self.selectors: dict[str, dict[str, Any]] = {}
        self.warnings: deque[dict[str, Any]] = deque(maxlen=NUM_WARNINGS)
        self._time_offset: float | None = None
        self._last_step = -1.0
        self._fold: dict[str, Callable[[Event], None]] = {
            "start": self._on_start,
            "resumed": self._on_resumed,
            "progress": self._on_progress,
            "step": self._on_step,
            "steps": self._on_step,
            "last_step": self.timeline.add_step,
            "eval": self._on_eval,
            "selector": self._on_selector,
            "built": self._on_built,
            "selection": self._on_selection,
            "last_selection": self._on_selection,
            "left_out": self._on_left_out,
            "auto": self._on_auto,
            "warning": lambda event: self._warn(event, event.get("text")),
            "failed": self._on_failed,
            "summary": self._on_summary,
        }

    def fold(self, event: Event) -> None:
        """Take in one event; kinds that the page does not show are only a sign of life."""
        self.num_events += 1
        t = number(event, "t")
        if t is not None:
            self.last_t = t if self.last_t is None else max(t, self.last_t)
        handle = self._fold.get(str(event.get("kind")))
        if handle is not None:
            handle(event)

    # --- the course of the run --------------------------------------------------------------------

    def _on_start(self, event: Event) -> None:
        told = {name: event.get(name) for name in ("mode", "policy", "seed", "keep", "batch_size", "devices")}
        self.start = {
            name: value for name, value in told.items() if isinstance(value, str) or is_number(value)
        }
        self.ending = None
        t = number(event, "t")
        if t is not None:
            # Training time goes on from its last value; the next progress event tells it exactly.
            self._time_offset = (self.latest.get("elapsed_s") or 0.0) - t

    def _on_resumed(self, event: Event) -> None:
        step = number(event, "step")
        self.ending = None
        if step is not None:
            self._take_back(step)
            self.latest["step"] = step
            # The event does not state the candidates at the checkpoint.
            self.latest["candidates"] = None
        self._warn(event, f"resumed at step {step:.0f}" if step is not None else "resumed", level="note")

    def _on_auto(self, event: Event) -> None:
        text = f"{event.get('key')} = 'auto': {event.get('new')} from now on ({event.get('reason')})"
        self._warn(event, text, level="note")

    def _on_left_out(self, event: Event) -> None:
        count, kind = number(event, "count") or 0, event.get("of")
        self._warn(event, f"{count:,.0f} more events of kind {kind}, too many to be written")

    def _on_failed(self, event: Event) -> None:
        self.ending = "failed"
        self._warn(event, event.get("error"), level="error")

    def _on_summary(self, event: Event) -> None:
        status = event.get("status")
        self.ending = status if status in ENDINGS else "finished"
        self.latest |= {
            field: value for field, name in IN_SUMMARY.items() if (value := number(event, name)) is not None
        }
        self.latest["left_s"] = None
        if self.ending == "finished":
            self.latest["share"] = 1.0
        for selector in self.selectors.values():
            if selector["state"] in ("connected", "ready"):
                selector["state"] = "done"  # the goodbye that ends a run is not an event

    # --- curves -----------------------------------------------------------------------------------

    def _on_progress(self, event: Event) -> None:
        if self.ending is not None:
            return  # it comes from the recent file, which is read last: the summary is newer
        row = {name: number(event, name) for name in _LATEST}
        t, elapsed_s = number(event, "t"), row["elapsed_s"]
        if t is not None and elapsed_s is not None:
            self._time_offset = elapsed_s - t
        self.latest |= row
        self.series["progress"].add(row | {"time": elapsed_s})

    def _on_step(self, event: Event) -> None:
        step = number(event, "step")
        if step is None:
            return
        begin = number(event, "first")
        begin = step if begin is None else begin
        if step <= self._last_step:  # a resume whose `resumed` event was lost or damaged
            self._take_back(begin)
        elif begin <= self._last_step:  # a stop had cut this window, and now it is complete
            self.series["steps"].cut("step", begin + 1)
        self._last_step = step
        row = {name: number(event, name) for name in self.series["steps"].columns}
        row["step"] = step + 1  # steps done, as in `progress` and `eval`
        self.series["steps"].add(row | {"time": self._time(event, _late_s(event))})
        if event.get("kind") == "step":
            self.timeline.add_step(event)
        self.latest["loss"] = row["loss"]
        for name in ("step", "candidates"):
            self.latest[name] = max(row[name] or 0, self.latest.get(name) or 0)

    def _on_eval(self, event: Event) -> None:
        error = number(event, "error")
        if error is None:
            self._warn(event, "the test error is not a number: the training has probably diverged")
            return
        row = {name: number(event, name) for name in ("step", "candidates", "error")}
        time_s = number(event, "elapsed_s")
        self.series["evals"].add(row | {"time": self._time(event) if time_s is None else time_s})
        self.latest["error"] = error

    def _time(self, event: Event, late_s: float = 0.0) -> float | None:
        """Seconds of training at an event written `late_s` after it happened, by the last progress event."""
        t = number(event, "t")
        return (
            None
            if t is None or self._time_offset is None
            else round(max(0.0, t - late_s + self._time_offset), 3)
        )

    def _take_back(self, step: float) -> None:
        """The run goes on from a checkpoint: remove what came after it, which is repeated."""
        self._last_step = step - 1
        for series in self.series.values():
            series.cut("step", step + 1)

    # --- the other role ---------------------------------------------------------------------------

    def _on_selector(self, event: Event) -> None:
        name = str(event.get("selector"))
        before = self.selectors.pop(name, {})
        told = {key: str(event[key]) for key in ("state", "device", "reason") if event.get(key) is not None}
        self.selectors[name] = {
            "state": "unknown",
            "device": "",
            **before,
            "reason": "",
            **told,
            "t": number(event, "t"),
        }
        # Every restart has another id: with a failing selector a long run's list would grow without bound.
        while len(self.selectors) > NUM_SELECTORS:
            del self.selectors[next(iter(self.selectors))]
        if told.get("state") in ("lost", "rejected"):
            self._warn(event, f"selector {name} {told['state']}: {told.get('reason', 'no reason given')}")

    def _on_built(self, event: Event) -> None:
        name = str(event.get("selector"))
        # The trainer's event on a selector says more, and may have been read first.
        if name not in self.selectors and event.get("selector") is not None:
            self.selectors[name] = {
                "state": "built",
                "device": str(event.get("device", "")),
                "reason": "",
                "t": number(event, "t"),
            }

    def _on_selection(self, event: Event) -> None:
        self.timeline.add_selection(str(event.get("selector", "selector")), event)

    def _warn(self, event: Event, text: object, level: str = "warning") -> None:
        self.warnings.append(
            {"t": number(event, "t"), "level": level, "text": str(text or "no reason given")[:500]}
        )


def _late_s(event: Event) -> float:
    """How long after its end a step's event was written: its losses are read a step late."""
    spans, clock = event.get("spans"), number(event, "clock")
    ends = spans.get("optimizer") if isinstance(spans, dict) else None
    if (
        clock is None
        or not isinstance(ends, list)
        or len(ends) < 2
        or not (is_number(ends[-2]) and is_number(ends[-1]))
    ):
        return 0.0
    return max(0.0, clock - ends[-2] - ends[-1])
