"""An engine with a selector in this process, and a loop of a few lines that drives it."""

import threading
from collections.abc import Callable

from sbpipe.link.ports import Port
from sbpipe.process import roles
from sbpipe.process.inline import INLINE
from sbpipe.runs.events import EventLog
from sbpipe.trainer.engine import Engine
from sbpipe.trainer.setup import Setup


def engine_for(setup: Setup, wrap: Callable[[Port], Port] = lambda port: port) -> Engine:
    """An engine whose selector answers in this process, over a port that `wrap` may make worse."""
    events, slots = EventLog(None, "trainer"), setup.slots()
    port = wrap(roles.inline_port(setup, slots, events))
    engine = Engine(setup.job(), port, slots, events, setup.spans)
    engine.admit(INLINE, "cpu")
    return engine


def train(setup: Setup, engine: Engine, first: int, last: int, total: int) -> None:
    """A loop of one's own."""
    is_stopped = threading.Event()
    for step in range(first, last):
        prepared = engine.next_batch(is_stopped)
        assert prepared is not None
        weigh = engine.weigher(prepared.batch)
        losses = setup.train_step(step, (step + 0.5) / total, prepared.inputs, prepared.targets, weigh)
        engine.take_losses(prepared.batch, losses, prepared.targets)
        engine.finish_step(step + 1)
