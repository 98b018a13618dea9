"""What `sbpipe top` writes: runs as blocks of text that fit a terminal. Pure: knows neither files nor the
terminal itself.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from sbpipe.show.terminal import duration, loop_words, percent

ACTIVE = ("running", "stalled", "waiting")
BAR_WIDTH = 24
SPARK_WIDTH = 16
NUM_WARNINGS = 3
_LEVELS = "▁▂▃▄▅▆▇█"
_MARK = "● "
_COLOURS = {"running": 32, "waiting": 36, "stalled": 33, "stopped": 33, "failed": 31, "killed": 31}


@dataclass(frozen=True)
class View:
    """What is shown of one run."""

    head: Mapping[str, Any]
    """Its line in the list of runs, as `live.status` makes it."""
    errors: Sequence[float | None] = ()
    losses: Sequence[float | None] = ()
    swings: Sequence[float | None] = ()
    fidelity: float | None = None
    selectors: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[str] = ()

    @property
    def is_active(self) -> bool:
        """Whether more may come of it."""
        return self.head["state"] in ACTIVE


def lines_of(views: Sequence[View], width: int, height: int, above: Sequence[str] = ()) -> list[str]:
    """At most `height` lines of at most `width` columns: active runs first, whole blocks while there is room,
    then single lines.
    """
    ordered = sorted(views, key=lambda view: not view.is_active)
    room = height - len(above)
    whole = [["", *block_of(view)] for view in ordered]
    brief = [[line_of(view)] for view in ordered]
    num_whole = _num_whole([len(block) for block in whole], room)
    blocks = whole[:num_whole] + ([[""]] if 0 < num_whole < len(ordered) else []) + brief[num_whole:]
    lines = [*above, *(line for block in blocks for line in block)]
    if len(lines) > height:
        num_hidden = len(lines) - height + 1
        lines = [*lines[: height - 1], f"… {num_hidden} more lines; to see a single run: sbpipe top PATH"]
    return [cut(line, width) for line in lines[:height]]


def _num_whole(sizes: Sequence[int], room: int) -> int:
    """How many blocks can be whole when each of the others takes a line, and an empty line divides them; at
    least one.
    """
    num_runs = len(sizes)
    fitting = [
        k
        for k, used in enumerate(accumulate(sizes), start=1)
        if used + (num_runs - k) + (k < num_runs) <= room
    ]
    return max(fitting, default=min(1, num_runs))


def block_of(view: View) -> list[str]:
    """A run in full."""
    head = view.head
    return [
        _title(view),
        _progress(head),
        f"  trainer   idle {percent(head.get('idle')):>6}  staleness {_form(head.get('staleness'), '.2f')} "
        "steps"
        f"  fidelity {_form(view.fidelity, '.2f')}  queue {_form(head.get('queue'), '.0f')}",
        f"  selector  idle {percent(head.get('selector_idle')):>6}  keep {percent(head.get('keep_rate'))}"
        f"  {_form(head.get('candidates_per_s'), ',.0f')} candidates/s{_selectors(view)}",
        *([f"  loop      {words}"] if (words := loop_words(head)) else []),
        *_curves(view),
        *(f"  ! {text}" for text in [*head.get("notes", ()), *view.warnings[-NUM_WARNINGS:]]),
    ]


def line_of(view: View) -> str:
    """A run in one line."""
    head = view.head
    return (
        f"{_MARK}{head['name']}  {_state(head)}  {_form(head.get('share'), '.0%')}  step "
        f"{_form(head.get('step'), ',.0f')}"
        f"  error {percent(head.get('error'))}  loss {_form(head.get('loss'), '.3f')}"
        f"  staleness {_form(head.get('staleness'), '.2f')}  idle {percent(head.get('idle'))} / "
        f"{percent(head.get('selector_idle'))}"
    )


def _title(view: View) -> str:
    head = view.head
    told = [f"{name} {value}" for name in ("seed", "devices") if (value := head.get(name)) is not None]
    words = [head.get("mode"), head.get("policy"), *told]
    return (
        f"{_MARK}{head['name']}  {_state(head)}   "
        f"{'  '.join(str(word) for word in words if word is not None)}"
    )


def _state(head: Mapping[str, Any]) -> str:
    silent = head["state"] in ("stalled", "killed") and head.get("age_s") is not None
    return f"{head['state']}, silent for {duration(head['age_s'])}" if silent else str(head["state"])


def _progress(head: Mapping[str, Any]) -> str:
    share = head.get("share") or 0.0
    filled = round(BAR_WIDTH * min(1.0, max(0.0, share)))
    time = (
        f"left {duration(head['left_s'])}"
        if head.get("left_s") is not None
        else f"ran {duration(head.get('elapsed_s') or 0.0)}"
    )
    return (
        f"  {'█' * filled}{'░' * (BAR_WIDTH - filled)} {share:4.0%}  step {_form(head.get('step'), ',.0f')}"
        f"  loss {_form(head.get('loss'), '.3f')}  error {percent(head.get('error'))}  {time}"
    )


def _selectors(view: View) -> str:
    """Who is in which state, and why, if a reason was told."""
    names: dict[str, list[str]] = {}
    for selector in view.selectors:
        why = selector.get("reason") or selector.get("device")
        names.setdefault(str(selector["state"]), []).append(
            f"{selector['name']} ({why})" if why else str(selector["name"])
        )
    return "".join(f"  {len(listed)} {state}: {', '.join(listed)}" for state, listed in names.items())


def _curves(view: View) -> list[str]:
    told = [
        f"{name} {sparkline(values, SPARK_WIDTH)} {form(known[0])} → {form(known[-1])}"
        for name, values, form in (
            ("error", view.errors, percent),
            ("loss", view.losses, _loss),
            ("swing", view.swings, _swing),
        )
        if len(known := [value for value in values if value is not None]) > 1
    ]
    return [f"  {'   '.join(told)}"] if told else []


def _loss(value: float) -> str:
    return f"{value:.3f}"


def _swing(value: float) -> str:
    return f"{value:.1f}"


def _form(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def sparkline(values: Sequence[float | None], width: int) -> str:
    """A curve in one line of at most `width` bars: each the mean of its share of the values, between the
    least and the most.
    """
    known = [value for value in values if value is not None]
    num_bars = min(width, len(known))
    edges = [k * len(known) // num_bars for k in range(num_bars + 1)] if num_bars else [0]
    means = [sum(known[begin:end]) / (end - begin) for begin, end in pairwise(edges)]
    low, span = min(means, default=0.0), max(means, default=0.0) - min(means, default=0.0)
    return "".join(_LEVELS[int((mean - low) / span * 7.999) if span else 0] for mean in means)


def cut(text: str, width: int) -> str:
    """At most `width` columns of a text, without anything a terminal would obey; an ellipsis where something
    is missing.
    """
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    ends = list(accumulate(_columns(letter) for letter in shown))
    if not ends or ends[-1] <= width:
        return shown
    return shown[: sum(end <= width - 1 for end in ends)] + "…" if width > 0 else ""


def _columns(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def painted(line: str) -> str:
    """The same line in a terminal's colours: a run's title by its state, warnings in yellow."""
    if line.startswith("  ! "):
        return f"\x1b[33m{line}\x1b[0m"
    if not line.startswith(_MARK):
        return line
    colour = next((code for state, code in _COLOURS.items() if f"  {state}" in line), 39)
    return f"\x1b[{colour}m{_MARK}\x1b[0m\x1b[1m{line.removeprefix(_MARK)}\x1b[0m"
