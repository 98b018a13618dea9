"""Each side of a pipeline measures its costs, as a process of its own, while the other side works too.

A side builds what a run would build, says that it is ready, and measures when it is told to. When it has
measured it goes on working until it is told otherwise, because the other side may not be done. It must not
know what the numbers are for.
"""

import json
import queue
import sys
import threading
from collections.abc import Callable

from sbpipe.config import Config
from sbpipe.process.gauge import MEASURE, READY, REST
from sbpipe.process.gauge_selector import SelectorGauge
from sbpipe.process.gauge_trainer import TrainerGauge


def measure_side(side: str, config: Config, say: Callable[[str], None]) -> None:
    """Build, then do as the lines of the input say until there are no more.

    `measure SECONDS` and `again SECONDS` (the essence only) are answered with what was found, and the work
    goes on until the next line; `rest` is answered when it has stopped.
    """
    measuring: TrainerGauge | SelectorGauge = (
        TrainerGauge(config) if side == "trainer" else SelectorGauge(config)
    )
    orders: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=[orders], daemon=True).start()
    say(READY)
    while order := orders.get():
        word, _, seconds = order.partition(" ")
        if word == REST:
            say(REST)
            continue
        found = measuring.measure(float(seconds)) if word == MEASURE else measuring.again(float(seconds))
        say(json.dumps(found))
        while orders.empty():
            measuring.work()


def _read(orders: "queue.Queue[str]") -> None:
    for line in sys.stdin:
        orders.put(line.strip())
    orders.put("")
