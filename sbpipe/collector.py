"""Python's garbage collector while large libraries are imported. It must not know which."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Leave what is imported meanwhile out of all collections.

    None of it ever becomes garbage, but it is most of what a process holds: with the collector at work, torch
    and its optimizers take 4.9 s of one core (Xeon, 2.5 GHz) to load, without it 4.0 s. Only for processes of
    our own: what a user's program holds is frozen too.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
