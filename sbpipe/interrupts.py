"""Ctrl-C while a process starts: it prints one line and exits. It must not know what starts.

Until then nothing has begun, so there is nothing to put in order. Importing large libraries may swallow a
KeyboardInterrupt, or turn it into another error; a handler that ends the process cannot be swallowed.
"""

import os
import signal
import threading
from typing import NoReturn

STOPPED = 130
"""The exit code after Ctrl-C: 128 + SIGINT."""
_LINE = b"sbpipe: stopped before it began\n"


def leave_at_once() -> None:
    """From here on Ctrl-C ends this process at once; for its start, before anything is written."""
    # A shell's background job ignores Ctrl-C from its start, and must go on doing so.
    if _is_ours_to_set():
        signal.signal(signal.SIGINT, _leave)


def raise_again() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt as usual, so that resources are released."""
    if _is_ours_to_set():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_ours_to_set() -> bool:
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) in (_leave, signal.default_int_handler)


def _leave(*_: object) -> NoReturn:
    os.write(2, _LINE)
    os._exit(STOPPED)
