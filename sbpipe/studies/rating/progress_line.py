"""The line in the terminal while scores are made. Text only; knows no models."""

import sys
import time

from sbpipe.show.terminal import Display, duration
from sbpipe.studies.rating.meter import Progress

_SHOW_EVERY_S = 0.2
_WIDTH = 24


class ProgressLine:
    """Shows progress, at most a few times a second."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._display = Display(sys.stdout)
        self._shown_at = 0.0

    def __call__(self, progress: Progress) -> None:
        """Show it, unless the last line is too recent."""
        is_last = progress.share >= 1.0
        if is_last or time.monotonic() >= self._shown_at + _SHOW_EVERY_S:
            self._shown_at = time.monotonic()
            self._display.lines([_line(self._kind, progress)], is_last=is_last)


def _line(kind: str, progress: Progress) -> str:
    filled = round(_WIDTH * progress.share)
    return (
        f"score    {'█' * filled}{'░' * (_WIDTH - filled)} {100 * progress.share:3.0f}%  {kind}, model "
        f"{progress.model} of "
        f"{progress.models}  left {duration(progress.left_s)}"
    )
