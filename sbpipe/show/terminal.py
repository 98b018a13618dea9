"""What a person sees while a run goes on: one live line per role in a terminal, plain lines elsewhere. Reads
events only.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from sbpipe.records import SelectorStats

PLAIN_EVERY_S = 5.0
_BAR = 24
LOOP: dict[str, tuple[str, str]] = {
    "swing": (
        "swing",
        "Variance of the class shares of the last 32 train batches over what chance gives: 1 = calm; to 4 = "
        "it follows classes, as fresh "
        "selection does; above 6 = it runs after classes, for its feedback comes late.",
    ),
    "prediction_swing": (
        "prediction swing",
        "The same for the classes that the selector's model predicts for its candidates, which no policy has "
        "chosen: the model itself "
        "swings between classes.",
    ),
    "strength": (
        "strength",
        "How sharply the policy chooses now: 0 = uniformly, 1 = plain Selective-Backprop.",
    ),
    "ess": (
        "effective sample size",
        "(sum w)² / (n sum w²) of the importance weights of a train batch: 1 = every example counts alike, "
        "0.5 = half of the batch "
        "is lost to weighing; what it has less than at lag 0 is the price of delay.",
    ),
    "guard": (
        "guard",
        "1 = open; less = the choice is mixed towards uniform, because the loop swung or the effective "
        "sample size fell.",
    ),
}
"""Whether the loop is stable: field of a step, what it is called, and what it says. A run that has no such
number leaves it out.
"""
_LOOP_FORMS = {"swing": "swing {:.1f}", "strength": "strength {:.2f}", "ess": "ess {:.2f}"}


def duration(seconds: float | None) -> str:
    """Seconds as a person says them."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    return (
        f"{whole // 60}m{whole % 60:02d}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    )


def percent(share: float | None) -> str:
    """A share as a percentage."""
    return "–" if share is None else f"{100 * share:.1f}%"


def loop_words(event: Mapping[str, Any]) -> str:
    """Whether the loop swings, in a few words; "" when nothing is known of it. The guard is named only while
    it is not open.
    """
    words = [form.format(event[name]) for name, form in _LOOP_FORMS.items() if event.get(name) is not None]
    guard = event.get("guard")
    return "  ".join([*words, *([f"guard {guard:.2f}"] if guard is not None and guard < 1.0 else [])])


def trainer_line(event: Mapping[str, Any], bar: int = _BAR, *, has_loop: bool = True) -> str:
    """The trainer's progress event as one line, with a bar of so many letters, and with what is known of the
    loop's swing.
    """
    loop = loop_words(event) if has_loop else ""
    filled = round(bar * event["share"])
    loss = "–" if event["loss"] is None else f"{event['loss']:.3f}"
    staleness = "–" if event["staleness"] is None else f"{event['staleness']:.2f}"
    return (
        f"trainer  {'█' * filled}{'░' * (bar - filled)} {100 * event['share']:3.0f}%  step {event['step']}  "
        f"loss {loss}  "
        f"error {percent(event['error'])}  staleness {staleness}  idle {percent(event['idle'])}  left "
        f"{duration(event['left_s'])}"
        f"{'  ' if loop else ''}{loop}"
    )


def selector_line(event: Mapping[str, Any]) -> str:
    """The selectors' side of a progress event as one line."""
    return (
        f"selector {event['selectors']} ready  keep {percent(event['keep_rate'])}  "
        f"{event['candidates_per_s']:,.0f} candidates/s  "
        f"idle {percent(event['selector_idle'])}"
    )


def lone_selector_line(stats: SelectorStats | None, elapsed_s: float) -> str:
    """What a selector in a terminal of its own says of itself."""
    if stats is None:
        return "selector waiting for a trainer"
    known_s = max(1e-9, stats.busy_s + stats.idle_s)
    return (
        f"selector weights version {stats.weights_version}  {stats.scored:,} candidates scored  "
        f"{stats.scored / max(1e-9, elapsed_s):,.0f} candidates/s  idle {percent(stats.idle_s / known_s)}"
    )


class Display:
    """Shows progress events as they come; `say` prints a line that stays."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out
        self._is_live = out.isatty()
        self._num_live = 0
        self._next_plain = 0.0

    def show(self, event: Mapping[str, Any]) -> None:
        """A progress event: redraw the live lines, or print a plain one now and then."""
        shown = [trainer_line(event), selector_line(event)]
        if self._is_live and len(shown[0]) >= shutil.get_terminal_size().columns:
            loop = loop_words(event)
            shown = [
                trainer_line(event, 4, has_loop=False),
                shown[1],
                *([f"loop     {loop}"] if loop else []),
            ]
        self.lines(shown, is_last=event["share"] >= 1.0)

    def lines(self, lines: list[str], *, is_last: bool = False) -> None:
        """Redraw the live lines, or print them as a plain one now and then."""
        if self._is_live:
            self._clear()
            width = shutil.get_terminal_size().columns - 1  # a wrapped line could not be taken back
            self._out.write("\n".join(line[:width] for line in lines) + "\n")
            self._num_live = len(lines)
            self._out.flush()
        elif time.monotonic() >= self._next_plain or is_last:
            self._next_plain = time.monotonic() + PLAIN_EVERY_S
            self._out.write("  |  ".join(lines) + "\n")
            self._out.flush()

    def say(self, text: str) -> None:
        """A line above the live ones."""
        self._clear()
        self._out.write(text + "\n")
        self._out.flush()

    def _clear(self) -> None:
        if self._num_live:
            self._out.write(f"\r\x1b[{self._num_live}A\x1b[J")
            self._num_live = 0


class Follower:
    """Reads a growing events file a piece at a time; a line that is still being written waits for its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_events(self) -> list[dict[str, Any]]:
        """Events since the last call; [] if there is no file yet."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._offset:
                    self._offset = 0  # replaced by a new run
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        whole, newline, _ = data.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        events = []
        for line in whole.splitlines():
            try:
                events.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return [event for event in events if isinstance(event, dict)]


Rows = tuple[tuple[str, str, Callable[[Any], str]], ...]
FIRST: Rows = (
    ("test error", "eval.error", percent),
    ("wall time", "wall_s", duration),
    ("steps", "steps", "{:,}".format),
    ("candidates", "candidates", "{:,}".format),
    ("keep rate", "keep_rate", percent),
    ("trainer busy", "trainer.busy_ratio", percent),
    ("trainer idle", "trainer.idle_ratio", percent),
)
"""What is asked first of a run, wherever its numbers are shown."""
TABLE: Rows = (
    *FIRST,
    ("selector busy", "selector.busy_ratio", percent),
    ("staleness mean", "staleness.mean", "{:.2f} steps".format),
    ("staleness max", "staleness.max", "{} steps".format),
    ("fast staleness", "staleness.fast_mean", "{:.2f} steps (normalisation, biases, head)".format),
    ("score fidelity", "fidelity.spearman", "{:.3f} (Spearman, score against fresh loss)".format),
    ("scoring agreement", "scoring.agreement", "{:.3f} (Spearman, coarse scores against fp32)".format),
    (
        "swing",
        "selection.swing",
        "{:.2f} (class shares: 1 = calm, above 6 = the choice runs after classes)".format,
    ),
    (
        "prediction swing",
        "selection.prediction_swing",
        "{:.2f} (the same for the classes that the selector's model predicts)".format,
    ),
    ("effective sample", "selection.ess", "{:.2f} of a train batch (1 = every example counts alike)".format),
    ("strength", "selection.strength", "{:.2f} (0 = uniform, 1 = plain Selective-Backprop)".format),
    ("guard", "selection.guard", "{:.2f} (1 = open, less = mixed towards uniform)".format),
    ("step", "trainer.step_ms", "{:.1f} ms".format),
    ("publish", "sync.snapshot_ms", "{:.2f} ms".format),
    ("publish fast parts", "sync.fast_publish_ms", "{:.2f} ms".format),
    ("trainer device", "device.trainer", str),
    ("selector device", "device.selector", str),
)


def summary_table(summary: Mapping[str, Any]) -> str:
    """The numbers a person asks for first."""
    rows = [(label, form(summary[key])) for label, key, form in TABLE if summary.get(key) is not None]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"  {label:<{width}}  {value}" for label, value in rows)
