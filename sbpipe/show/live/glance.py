"""What `sbpipe top` shows, asked of the watch that the page uses too, and whether a silent run's trainer is
still there.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sbpipe.runs.directory import is_held
from sbpipe.show.live.finding import find
from sbpipe.show.live.top import ACTIVE, View, lines_of
from sbpipe.show.live.watching import Sent, Watch

GONE_AFTER_S = 5
"""Silence after which it is worth asking whether the trainer is still there."""
_FIDELITY_OF = 20
"""Points the fidelity is averaged over: of a single step it jumps about."""


class Glance:
    """The runs under some paths as they are now."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._watch = Watch(paths)

    def read(self, within_s: float = 0.5) -> bool:
        """Take in what is new; whether all of it could be within the time."""
        end = time.monotonic() + within_s
        while is_more := self._watch.look():
            if time.monotonic() > end:
                break
        return not is_more

    def lines(self, width: int, height: int) -> list[str]:
        """What to show of them in so much room."""
        told = self._watch.overview()
        heads = self._with_killed(told["heads"])
        shown = sorted(heads, key=lambda head: head["state"] not in ACTIVE)[
            :height
        ]  # the others get no curves: there is no room
        details = self._watch.news([head["name"] for head in shown], Sent()).get("runs", {})
        views = [view_of(head, details.get(head["name"], {})) for head in heads]
        above = [self._title(heads, width), *map(_study, told["studies"]), *told["problems"], *told["notes"]]
        return lines_of(views, width, height, above)

    def _title(self, heads: Sequence[Mapping[str, Any]], width: int) -> str:
        num_active = sum(head["state"] in ACTIVE for head in heads)
        title = (
            f"sbpipe top  {' '.join(map(str, self._paths))}  {num_active} active, "
            f"{len(heads) - num_active} ended"
        )
        clock = time.strftime("%H:%M:%S")
        return f"{title:<{max(0, width - len(clock))}}{clock}"

    def _with_killed(self, heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A run that fell silent and whose trainer no longer holds its directory was killed, or its host
        was.
        """
        if not any(_is_silent(head) for head in heads):
            return heads
        paths = find(self._paths).runs
        return [
            _killed(head, path) if (path := paths.get(head["name"])) and _is_gone(head, path) else head
            for head in heads
        ]


def _is_gone(head: Mapping[str, Any], path: Path) -> bool:
    return _is_silent(head) and not is_held(path)


def _killed(head: Mapping[str, Any], path: Path) -> dict[str, Any]:
    way_out = f"its trainer is gone; go on with: sbpipe run --run-dir {path} --resume"
    return {**head, "state": "killed", "left_s": None, "notes": [*head["notes"], way_out]}


def _is_silent(head: Mapping[str, Any]) -> bool:
    return head["state"] in ACTIVE and (head.get("age_s") or 0) >= GONE_AFTER_S


def view_of(head: Mapping[str, Any], details: Mapping[str, Any]) -> View:
    """A run's head and details, as the watch tells them, as what is shown."""
    series = details.get("series", {})
    fidelity = [value for value in _column(series.get("steps"), "spearman") if value is not None][
        -_FIDELITY_OF:
    ]
    return View(
        head=head,
        errors=_column(series.get("evals"), "error"),
        losses=_column(series.get("steps"), "loss"),
        swings=_column(series.get("steps"), "swing"),
        fidelity=sum(fidelity) / len(fidelity) if fidelity else None,
        selectors=details.get("selectors", ()),
        warnings=[warning["text"] for warning in details.get("warnings", ())],
    )


def _column(series: Mapping[str, Any] | None, name: str) -> list[float | None]:
    if series is None:
        return []
    at = series["columns"].index(name)
    return [row[at] for row in series["rows"]]


def _study(study: Mapping[str, Any]) -> str:
    counts = ", ".join(
        f"{study[word]} {word}" for word in ("finished", "running", "failed", "waiting") if study[word]
    )
    return f"{study['kind']} {study['name']}: {study['total']} cells, {counts}"
