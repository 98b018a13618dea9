"""When the dispatcher's thread does not listen, and that a call is never lost."""

import threading

import pytest

from sbpipe.trainer.serving import rest as module
from sbpipe.trainer.serving.rest import Rest


class Wakes:
    """Of a port, what a rest uses of it."""

    def __init__(self) -> None:
        self.count = 0

    def wake(self) -> None:
        self.count += 1


@pytest.fixture(autouse=True)
def _long_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a call ends a rest in time."""
    monkeypatch.setattr(module, "LONGEST_S", 600.0)


def test_a_call_ends_a_rest_without_waking_the_port() -> None:
    lock, wakes, is_begun, is_over = threading.RLock(), Wakes(), threading.Event(), threading.Event()
    rest = Rest(lock, wakes)

    def turn() -> None:
        with lock:
            rest.begin_turn()
            is_begun.set()
            rest.take(1)
            is_over.set()

    threading.Thread(target=turn, daemon=True).start()
    assert is_begun.wait(60.0)
    with lock:  # which the rest has given away by now
        rest.call()
    assert is_over.wait(60.0)
    assert rest.is_over
    assert not wakes.count


def test_who_called_during_a_turn_is_heard_before_a_rest() -> None:
    lock, wakes = threading.RLock(), Wakes()
    rest = Rest(lock, wakes)
    with lock:
        rest.begin_turn()
        rest.call()
        rest.take(1)  # returns at once
    assert not rest.is_over
    assert wakes.count == 1


def test_there_is_one_rest_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_S", 0.001)
    lock = threading.RLock()
    rest, ends = Rest(lock, Wakes()), []
    with lock:
        for step in (1, 1, 2):
            rest.begin_turn()
            rest.take(step)
            ends.append(rest.is_over)
    assert ends == [True, False, True]
