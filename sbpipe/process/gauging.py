"""One side of the short run that a plan measures, as a process of its own: it does as it is told, line by
line, and answers each with what it has to say. It must not know what the run is for.
"""

import json
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from sbpipe.config import Config
from sbpipe.machine.cores import SpareCores
from sbpipe.process.gauge_selector import SelectorGauge
from sbpipe.process.gauge_trainer import TrainerGauge

Say = Callable[[str], None]


def measure_side(side: str, config: Config, given: Mapping[str, Any], spare: SpareCores, say: Say) -> None:
    """Build, say what it computes on, then do as the lines of the input say until there are no more."""
    gauge = SelectorGauge(config, given) if side == "selector" else TrainerGauge(config, spare)
    say(json.dumps(gauge.facts))
    failures: list[BaseException] = []

    def listen() -> None:
        try:
            for line in sys.stdin:
                say(json.dumps(gauge.obey(line.strip())))
        except BaseException as error:  # noqa: BLE001 - the top of a thread: raised again below
            failures.append(error)
        finally:
            gauge.stop()

    threading.Thread(target=listen, daemon=True).start()
    gauge.run()
    if failures:
        raise failures[0]
