"""Was the loop as fast as plain training, and if not, why? From the numbers of a summary. Pure."""

from sbpipe.runs.numbers import number
from sbpipe.runs.verdict.causes import FASTER_DATA, cause_of, is_own_data_path
from sbpipe.runs.verdict.finding import WAITED, Finding, Numbers, percent
from sbpipe.runs.verdict.speed import filled_by

_TURNS = ("inline", "lockstep", "fixed-lag")
_OWN_LOADING = "loading its own train batches"


def loop_finding(numbers: Numbers) -> Finding:
    """What the loop waited for, and the share of its time that selection's own work took."""
    mode, idle = numbers.get("mode"), number(numbers, "trainer.idle_ratio")
    if mode == "data-parallel":
        return _without_selector(numbers, idle or 0.0)
    if idle is None:
        return Finding("How long the loop waited is not known.", "Speed is not known")
    if mode in _TURNS:
        return _in_turns(numbers, idle)
    return _pipelined(numbers, idle)


def _without_selector(numbers: Numbers, idle: float) -> Finding:
    """There is no selector, so every wait is the loop's own."""
    text, short = "There was no selector to wait for.", "Every device trained"
    if idle < WAITED:
        return Finding(text, short)
    if not is_own_data_path(numbers):
        return Finding(f"{text} The loop waited {percent(idle)} of its time.", f"{short} ({_waited(idle)})")
    return Finding(
        f"{text} {_slow_loading(numbers, idle)}",
        f"{short} ({_waited(idle)}, for {_OWN_LOADING})",
        FASTER_DATA,
    )


def _in_turns(numbers: Numbers, idle: float) -> Finding:
    """Modes in which nothing is scored while a step trains."""
    mode = numbers["mode"]
    by_design = f"Slower by design (mode {mode}: {_waited(idle)}"
    if idle < WAITED:
        return Finding(
            f"The loop did not wait ({percent(idle)} of its time){_own_work(numbers)}.", f"{by_design})"
        )
    if is_own_data_path(numbers):
        turns = "" if mode == "fixed-lag" else f" In mode {mode} nothing is loaded while a step trains."
        text = f"{_slow_loading(numbers, idle)}{turns}"
        return Finding(text, f"{by_design}, most of it for {_OWN_LOADING})", FASTER_DATA)
    own = number(numbers, "trainer.wait_view_ratio") or 0.0
    what = "scores" if number(numbers, "selector.scored") != 0 else "batches that are chosen without scores"
    loaded = f", {percent(own)} of it for {_OWN_LOADING}" if own >= WAITED else ""
    knob = "mode = 'pipelined' scores beside training, on a second device" if mode == "inline" else ""
    text = (
        f"The loop waited {percent(idle)} of its time for {what}{loaded}{_own_work(numbers)}: in mode {mode} "
        "the roles take turns."
    )
    return Finding(text, f"{by_design})", knob)


def _pipelined(numbers: Numbers, idle: float) -> Finding:
    """Waits and selection's own work in the loop must be small together."""
    own, filled = number(numbers, "trainer.selection_ratio"), number(numbers, "fill.share") or 0.0
    cost = idle + (own or 0.0)
    took = [_waited(idle), *([] if own is None else [f"selection's own work {percent(own)}"])]
    if max(idle, filled) < WAITED:
        text = f"The loop did not wait ({percent(idle)} of its time){_own_work(numbers)}."
        knob = _knob_of_own_work(numbers) if cost >= WAITED else ""
        return Finding(text, f"{_slower_by(cost)} ({', '.join(took)})", knob)
    cause = cause_of(numbers)
    waited = f"waited {percent(idle)} of its time" if idle >= WAITED else "did not wait"
    parts = [f"The loop {waited}{_own_work(numbers)}."]
    if filled >= WAITED:
        share = f"{percent(filled)} of the trained examples were not selected but filled in"
        parts.append(f"{share}{_when_filled(numbers)}.")
    if idle >= WAITED:
        told = [*took[1:], f"{took[0]}, for {cause.short}"]
    else:
        told = [
            *(took if cost >= WAITED else []),
            f"{percent(filled)} of its examples filled in without scores",
        ]
    # Plain training may wait for loading too, so "by how much" is not known.
    slower = "Slower than plain training" if is_own_data_path(numbers) else _slower_by(cost)
    return Finding(" ".join([*parts, cause.text]), f"{slower} ({', '.join(told)})", cause.knob)


def _slower_by(cost: float) -> str:
    """The headline; `cost` is the share of the loop's time that plain training would have trained in."""
    if cost < WAITED:
        return "Not slower than plain training"
    return f"Slower than plain training by {percent(cost / max(0.01, 1.0 - cost))}"


def _waited(idle: float) -> str:
    return f"waited {percent(idle)}"


def _own_work(numbers: Numbers) -> str:
    """The share of the loop's time for steering, publishing, events and messages, to end a sentence."""
    own = number(numbers, "trainer.selection_ratio")
    return "" if own is None else f", and {percent(own)} went to selection's own work"


def _knob_of_own_work(numbers: Numbers) -> str:
    """Selection's own work is done once a step, however long a step is; publishing can be done less often."""
    names = ("weigh", "steer", "log", "publish", "publish_fast")
    seconds = {name: number(numbers, f"trainer.{name}_s") or 0.0 for name in names}
    published = seconds["publish"] + seconds["publish_fast"]
    if published > 0.5 * sum(seconds.values()):
        return "a longer sync.interval"
    return "longer steps (train.batch_size): selection's own work is done once a step"


def _slow_loading(numbers: Numbers, idle: float) -> str:
    """The sentence that the loop waited for its own train batches."""
    own = number(numbers, "trainer.wait_view_ratio")
    part = "most of it" if own is not None and own < 0.95 * idle else "all of it"
    return f"The loop waited {percent(idle)} of its time, {part} for {_OWN_LOADING}{_own_work(numbers)}."


def _when_filled(numbers: Numbers) -> str:
    """The main reason why examples were filled in."""
    by = filled_by(numbers)
    total = sum(by.values())
    if not total:
        return ", because the selector was late"
    words = {
        "starting": "before the selector was ready",
        "alone": "while no selector was left",
        "late": "because the selector was late",
    }
    main = max(by, key=lambda name: by[name])
    return f", {percent(by[main] / total)} of them {words[main]}"
