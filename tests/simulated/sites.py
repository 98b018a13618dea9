"""Where in Python this thread is, as a number that C++ can keep. Knows nothing of devices."""

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

ROOT = str(Path(__file__).resolve().parents[2])
_TORCH = str(Path(torch.__file__).parent)


class Site(NamedTuple):
    """A line and the thread it ran in."""

    where: str
    thread: str


_known: list[Site] = [Site("?", "?")]
_numbers: dict[Site, int] = {}
_lock = threading.Lock()


def number() -> int:
    """The number of the place that this thread is at."""
    try:
        return _number_of(here())
    except Exception:  # noqa: BLE001 - C++ is waiting, and an interpreter that ends may have lost its modules
        return 0


def here() -> Site:
    """The place that this thread is at."""
    return Site(_where(sys._getframe(1)), _thread())


def site(of: int) -> Site:
    """The place that has this number."""
    return _known[of]


def _number_of(found: Site) -> int:
    with _lock:
        if found not in _numbers:
            _numbers[found] = len(_known)
            _known.append(found)
        return _numbers[found]


def _where(frame: FrameType | None) -> str:
    """The innermost line of sbpipe; where there is none, the innermost that is not torch's."""
    package = getattr(sys.modules.get("sbpipe"), "__path__", [f"{ROOT}/sbpipe"])[0] + "/"
    nearest = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(package):
            return f"sbpipe/{name.removeprefix(package)}:{frame.f_lineno}"
        if not nearest and not name.startswith((_TORCH, __file__)):
            nearest = f"{name.removeprefix(ROOT + '/')}:{frame.f_lineno}"
        frame = frame.f_back
    return nearest or "(no Python: autograd)"


def _thread() -> str:
    # Not current_thread(), which would make an object for every thread of C++.
    known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    return known.name if known is not None else "(C++)"
