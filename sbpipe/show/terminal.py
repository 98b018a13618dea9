"""A run in a terminal: live lines while it goes on, a table at its end."""

import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TextIO

from sbpipe.runs.names import NUMBERS
from sbpipe.runs.verdict import lines_of
from sbpipe.text import visible

if TYPE_CHECKING:
    from sbpipe.records import SelectorStats

PLAIN_EVERY_S = 5.0
_BAR = 24


def duration(seconds: float | None) -> str:
    """Seconds as people write them."""
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


FORMS: dict[str, Callable[[Any], str]] = {
    "share": percent,
    "s": duration,
    "ms": "{:,.1f} ms".format,
    "ratio": "{:.2f}".format,
    "correlation": "{:.3f}".format,
    "bytes/s": lambda rate: f"{rate / 1e6:,.1f} MB/s",
    "candidates/s": "{:,.0f} / s".format,
    "loss": "{:.3f}".format,
    "metric": "{:.4g}".format,
}
"""How to write a number by its unit; other units are written behind the number, unless it is a count."""


def shown(name: str, value: Any) -> str:
    """A number of the summary, formatted for people."""
    unit = NUMBERS[name].unit
    if unit in FORMS:
        return FORMS[unit](value)
    return f"{value:,.2f} {unit}" if isinstance(value, float) else f"{value:,}"


def trainer_line(event: Mapping[str, Any], bar: int = _BAR) -> str:
    """The trainer's side of a progress event as one line, with a bar of `bar` letters.

    A narrow terminal cuts the line, so the numbers on the run's pace come before loss and error.
    """
    share, step = event.get("share") or 0.0, event.get("step") or 0
    filled = round(bar * min(1.0, max(0.0, share)))
    return (
        f"trainer  {'█' * filled}{'░' * (bar - filled)} {100 * share:3.0f}%  "
        f"{event.get('candidates_per_s') or 0.0:,.0f}/s  left {duration(event.get('left_s'))}  "
        f"staleness {_two(event.get('staleness'))}  idle {percent(event.get('idle'))}  step {step:.0f}  "
        f"loss {_three(event.get('loss'))}  error {percent(event.get('error'))}{_tested(event)}"
    )


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _three(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _tested(event: Mapping[str, Any]) -> str:
    """The test loss and the user's metric, if they were measured."""
    loss, metric, name = (event.get(field) for field in ("test_loss", "metric", "metric_name"))
    of_loss = "" if loss is None else f"  test loss {_three(loss)}"
    return of_loss + ("" if metric is None else f"  {name or 'metric'} {FORMS['metric'](metric)}")


def selector_line(event: Mapping[str, Any]) -> str:
    """The selectors' side of a progress event as one line."""
    return (
        f"selectors {event.get('selectors') or 0:.0f} ready  keep {percent(event.get('keep_rate'))}"
        f"  idle {percent(event.get('selector_idle'))}{_effective(event)}"
    )


def _effective(event: Mapping[str, Any]) -> str:
    """The effective share of the candidates, if scores tell it: the room for a gain from selection."""
    share, error = event.get("worth_ess"), event.get("worth_ess_error")
    return "" if share is None or error is None else f"  effective share {share:.2f}±{error:.2f}"


def lone_selector_line(stats: "SelectorStats | None", elapsed_s: float) -> str:
    """The line of a selector that runs in its own terminal."""
    if stats is None:
        return "selector waiting for a trainer"
    known_s = max(1e-9, stats.busy_s + stats.idle_s)
    return (
        f"selector weights version {stats.weights_version}  {stats.scored:,} candidates scored  "
        f"{stats.scored / max(1e-9, elapsed_s):,.0f} candidates/s  idle {percent(stats.idle_s / known_s)}"
    )


def cut(text: str, width: int) -> str:
    """At most `width` columns of a text without control characters; "…" where it is cut."""
    plain = visible(text)
    ends = list(accumulate(_columns(letter) for letter in plain))
    if not ends or ends[-1] <= width:
        return plain
    return plain[: sum(end <= width - 1 for end in ends)] + "…" if width > 0 else ""


def _columns(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


class Display:
    """Shows progress events as they come; `say` prints a line that stays."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out
        self._is_live = out.isatty()
        self._num_live = 0
        self._next_plain = 0.0

    def show(self, event: Mapping[str, Any]) -> None:
        """Show a progress event: redraw the live lines, or print a plain one now and then."""
        trainer = trainer_line(event)
        if self._is_live and len(trainer) >= shutil.get_terminal_size().columns:
            # The numbers at the end of the line matter more than a long bar.
            trainer = trainer_line(event, bar=4)
        self.lines([trainer, selector_line(event)], is_last=event["share"] >= 1.0)

    def lines(self, lines: list[str], *, is_last: bool = False) -> None:
        """Redraw the live lines; without a terminal, print them as a plain one now and then."""
        if self._is_live:
            self._clear()
            columns, rows = shutil.get_terminal_size()
            lines = lines[: rows - 1]  # lines that have wrapped or scrolled away could not be cleared
            self._out.write("\n".join(cut(line, columns - 1) for line in lines) + "\n")
            self._num_live = len(lines)
            self._out.flush()
        # A log file or a pipe cannot be redrawn, and a line twice a second would fill it.
        elif time.monotonic() >= self._next_plain or is_last:
            self._next_plain = time.monotonic() + PLAIN_EVERY_S
            self._out.write(visible("  |  ".join(lines)) + "\n")
            self._out.flush()

    def say(self, text: str) -> None:
        """Print a line above the live ones."""
        self._clear()
        plain = visible(text)
        if self._is_live:
            # Wrapped between words: the terminal would break in the middle of a number.
            plain = "\n".join(_wrapped(plain, "", max(40, shutil.get_terminal_size().columns)))
        self._out.write(plain + "\n")
        self._out.flush()

    def _clear(self) -> None:
        if self._num_live:
            # Move up to the first live line, and clear from there to the end of the screen.
            self._out.write(f"\r\x1b[{self._num_live}A\x1b[J")
            self._num_live = 0


def verdict_text(summary: Mapping[str, Any], width: int | None = None) -> str:
    """The verdict of a run: its headline, then a finding of each kind; "" if the summary holds none."""
    lines = lines_of(summary)
    width = max(40, width or min(100, shutil.get_terminal_size().columns))
    label_width = max((len(label) for label, _ in lines), default=0)
    told = []
    for label, words in lines:
        head = f"  {label:<{label_width}}  " if label else ""
        told += _wrapped(cut(words, 10_000), head, width)
    return "\n".join(told)


def _wrapped(words: str, head: str, width: int) -> list[str]:
    """Lines of at most `width` columns; those after the first are indented to the words."""
    below = " " * len(head)
    return textwrap.wrap(
        words,
        width,
        initial_indent=head,
        subsequent_indent=below,
        break_on_hyphens=False,
        break_long_words=False,  # a path is copied whole
    )


ENDING = {
    "eval.error": "of the test examples classified wrongly",
    "eval.loss": "mean over the test set",
    "eval.metric": "your own, mean over the test set",
    "wall_s": "from start to end",
    "steps": "optimizer steps",
    "candidates_per_s": "candidates considered while training",
    "trainer.idle_ratio": "of its time without a batch; high: selecting is too slow",
    "selector.busy_ratio": "of its time busy; near 100%: it cannot score more",
    "keep_rate": "of the candidates were trained on",
    "staleness.mean": "that the weights moved on between scoring and training",
    "fidelity.spearman": "1 = scores rank like fresh losses, 0 = they say nothing",
}
"""The numbers a user acts on, each with a few words; trouble with leases comes last."""


def label_of(name: str, summary: Mapping[str, Any]) -> str:
    """The label of a number; a user's own metric has the name of its function."""
    own = summary.get("eval.metric_name") if name == "eval.metric" else None
    return str(own or NUMBERS[name].label)


def summary_table(summary: Mapping[str, Any], width: int | None = None) -> str:
    """The numbers a user acts on; all others are in summary.json and in the report."""
    rows = [
        (label_of(name, summary), shown(name, summary[name]), words)
        for name, words in ENDING.items()
        if summary.get(name) is not None
    ]
    lost, alone = summary.get("lease.expired"), summary.get("lease.fallback")
    if lost is not None and alone is not None:
        words = "leases taken back from lost selectors; answered without one"
        rows.append(("lost, fallback", f"{lost:,}, {alone:,}", words))
    widths = [max(len(row[k]) for row in rows) for k in (0, 1)]
    told = []
    for label, value, words in rows:
        head = f"  {label:<{widths[0]}}  {value:<{widths[1]}}  "
        told += _wrapped(words, head, max(len(head) + 20, width or shutil.get_terminal_size().columns))
    return "\n".join(told)
