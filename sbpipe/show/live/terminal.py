"""The terminal as a screen: the alternate one, redrawn whole, left as it was found however the program ends.
Knows no run.
"""

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, TextIO

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""Alternate screen, no cursor, no wrapping; and back."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP)
_ENDING = {signal.SIGINT: "quit", signal.SIGTERM: "terminated", signal.SIGHUP: "terminated"}


class Screen:
    """Draws lines and waits for keys. Signals are read from a pipe, so nothing happens in the middle of a
    drawing.
    """

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out
        self._keys = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._modes: list[Any] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Screen":
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _noted) for number in _SIGNALS}
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # the terminal itself may be gone
            self._close()
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read_end)
        os.close(self._write_end)

    def _open(self) -> None:
        if self._keys is not None:
            self._modes = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        self._write(_ENTER)

    def _close(self) -> None:
        self._write(_LEAVE)
        if self._keys is not None and self._modes is not None:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._modes)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, now; those of the oldest terminals if it does not tell."""
        columns, lines = os.get_terminal_size(self._out.fileno())
        return columns or 80, lines or 24

    def draw(self, lines: Sequence[str]) -> None:
        """Put these lines in place of what is there; each must fit. A row is cleared before it is written:
        after it, its last column would go too.
        """
        rows = [*lines, *[""] * (self.size[1] - len(lines))]
        self._write("\x1b[H" + "\r\n".join(f"\x1b[K{row}" for row in rows))

    def wait(self, timeout_s: float) -> str:
        """Until something calls for a drawing: "quit", "terminated", "resized", or "" when the time is up."""
        end = time.monotonic() + timeout_s
        sources = [self._read_end] + ([self._keys] if self._keys is not None else [])
        while (left_s := end - time.monotonic()) > 0:
            ready, _, _ = select.select(sources, [], [], left_s)
            word = self._key() if self._keys in ready else self._signal() if self._read_end in ready else ""
            if word:
                return word
        return ""

    def _key(self) -> str:
        assert self._keys is not None
        typed = os.read(self._keys, 64)
        if not typed:
            self._keys = None  # hung up: no key will come any more
            return "terminated"
        return "quit" if typed in (b"q", b"Q") else ""

    def _signal(self) -> str:
        numbers = set(os.read(self._read_end, 64))
        if signal.SIGTSTP in numbers:
            self._pause()
        return next((_ENDING[number] for number in _ENDING if number in numbers), "resized")

    def _pause(self) -> None:
        """Ctrl-Z: give the terminal back, stop, and take it again when we go on."""
        self._close()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._open()

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _noted(number: int, frame: FrameType | None) -> None:
    """The number is already in the pipe."""
