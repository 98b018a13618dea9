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
    if side == "selector":
        selector = SelectorGauge(config, given)
        say(json.dumps(selector.facts))
        _obey(selector.obey, say)
        selector.stop()
        return
    trainer = TrainerGauge(config, spare)
    say(json.dumps(trainer.facts))

    def listen() -> None:
        try:
            _obey(trainer.obey, say)
        finally:
            trainer.stop()

    with spare.for_threads():
        threading.Thread(target=listen, daemon=True).start()
    trainer.run()


def _obey(obey: Callable[[str], dict[str, Any]], say: Say) -> None:
    for line in sys.stdin:
        say(json.dumps(obey(line.strip())))
