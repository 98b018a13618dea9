"""The last few steps of both roles as bars on one time axis: where they overlap, where one waits. Pure."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sbpipe.runs.names import LOOP_STAGES, SELECTOR_STAGES, STAGE_LABELS, stages_of
from sbpipe.runs.numbers import is_number, number
from sbpipe.runs.reader import SAME_HOST_S

Event = Mapping[str, Any]

NUM_STEPS = 10
NUM_SELECTORS = 4

# Applying new weights is work within `await`, so its time is subtracted from the wait.
_WAITING = dict.fromkeys(
    (STAGE_LABELS[name] for role in ("trainer", "selector") for name in stages_of(role, "wait")), 1
) | {STAGE_LABELS["apply"]: -1, STAGE_LABELS["apply_fast"]: -1}


@dataclass(frozen=True)
class Moment:
    """One event with its readable spans."""

    clock: float
    wall_offset: float
    """The offset from this host's clock to wall time."""
    step: float | None
    spans: Mapping[str, list[tuple[float, float]]]
    """Beginning and end of every stage, by its name."""

    @property
    def begin(self) -> float:
        """When its first stage began."""
        return min((begin for times in self.spans.values() for begin, _ in times), default=self.clock)

    @property
    def end(self) -> float:
        """When its last stage ended; the event itself is written a step later."""
        return max((end for times in self.spans.values() for _, end in times), default=self.clock)


def moment_of(event: Event) -> Moment | None:
    """The times of an event; None if it has no usable ones."""
    clock, wall, step, spans = (
        number(event, "clock"),
        number(event, "t"),
        number(event, "step"),
        event.get("spans"),
    )
    if clock is None or wall is None or not isinstance(spans, dict):
        return None
    return Moment(clock, wall - clock, step, {str(name): _times(numbers) for name, numbers in spans.items()})


def _times(numbers: object) -> list[tuple[float, float]]:
    """(begin, end) pairs from start, duration, start, duration, ...; [] from anything else."""
    if not isinstance(numbers, list) or not all(map(is_number, numbers)):
        return []
    return [(begin, begin + lasted) for begin, lasted in zip(numbers[::2], numbers[1::2], strict=False)]


@dataclass
class Timeline:
    """The newest events with spans, from the trainer and each selector; parsed only when drawn."""

    steps: deque[Event] = field(default_factory=lambda: deque(maxlen=NUM_STEPS + 1))
    selections: dict[str, deque[Event]] = field(default_factory=dict)

    def add_step(self, event: Event) -> None:
        """A `step` event."""
        self.steps.append(event)

    def add_selection(self, selector: str, event: Event) -> None:
        """A `selection` event; if there are too many selectors, those that answered last are kept."""
        # Removed and added again: a dictionary keeps order, so the first selector is silent for longest.
        selections = self.selections.pop(selector, deque(maxlen=4 * NUM_STEPS))
        selections.append(event)
        self.selections[selector] = selections
        if len(self.selections) > NUM_SELECTORS:
            del self.selections[next(iter(self.selections))]


def drawing(timeline: Timeline) -> dict[str, Any]:
    """Bars (lane, stage, begin and end in seconds before now), and the share of time each role waited."""
    steps = _moments(timeline.steps)
    if not steps:
        return {"bars": [], "waited": {}}
    selectors = {
        name: found for name, events in sorted(timeline.selections.items()) if (found := _moments(events))
    }
    # The oldest step is not drawn: its end is where the window begins.
    begin = steps[0].end if len(steps) > 1 else steps[0].begin
    end = _end(steps, selectors.values(), begin)
    bars = list(_bars("trainer", steps[1:] or steps, LOOP_STAGES, begin, end))
    for place, (name, selections) in enumerate(selectors.items()):
        shift = _shift(selections[-1], steps[-1])
        lane = "selector" if len(selectors) == 1 else f"selector {place + 1}"
        bars += _bars(
            f"{lane} (other host)" if shift else lane, selections, SELECTOR_STAGES, begin, end, shift, name
        )
    return {"bars": bars, "waited": _waited(bars, end - begin)}


def _moments(events: Iterable[Event]) -> list[Moment]:
    return [moment for event in events if (moment := moment_of(event)) is not None]


def _shift(selection: Moment, step: Moment) -> float:
    """The offset from a selector's clock to the trainer's."""
    shift = selection.wall_offset - step.wall_offset
    return shift if abs(shift) > SAME_HOST_S else 0.0


def _end(steps: Sequence[Moment], selectors: Iterable[Sequence[Moment]], begin: float) -> float:
    """The end of the last step, or of an earlier last answer: after it a selector must not look idle."""
    last = steps[-1].end
    told = [selections[-1].end + _shift(selections[-1], steps[-1]) for selections in selectors]
    return min([last, *(end for end in told if end > (begin + last) / 2)])


def _bars(
    lane: str,
    moments: Sequence[Moment],
    stages: Sequence[str],
    begin: float,
    end: float,
    shift: float = 0.0,
    selector: str = "",
) -> Iterator[dict[str, Any]]:
    extra = {"selector": selector} if selector else {}
    for moment in moments:
        told = extra if moment.step is None else extra | {"step": moment.step}
        for stage in stages:
            for start, stop in moment.spans.get(stage, []):
                if stop + shift > begin and start + shift < end:
                    times = {"begin": max(start + shift, begin) - end, "end": min(stop + shift, end) - end}
                    yield {
                        "lane": lane,
                        "stage": STAGE_LABELS[stage],
                        **{name: round(time, 6) for name, time in times.items()},
                        **told,
                    }


def _waited(bars: Sequence[Mapping[str, Any]], window_s: float) -> dict[str, float]:
    """Share of the window that each lane had nothing to do."""
    shares: dict[str, float] = {}
    for bar in bars:
        waited_s = _WAITING.get(bar["stage"], 0) * (bar["end"] - bar["begin"])
        shares[bar["lane"]] = shares.get(bar["lane"], 0.0) + waited_s / max(1e-9, window_s)
    return {lane: round(min(1.0, max(0.0, share)), 4) for lane, share in shares.items()}
