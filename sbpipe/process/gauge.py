"""Measures what a plan needs: a short run of both roles, pinned and linked as `run` has them. No torch.

A run, and no imitation of one: its loader and dispatcher wake on the selector's core, its leases and answers
are encoded and sent, its steps are steered and told. What it costs is read from its events. Late batches are
filled in it, so that both sides always work; then each works alone for a while, because in a run one of them
rests for a part of every step.
"""

import json
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sbpipe.config import Config
from sbpipe.process.gauge_samples import Window, selector_costs, trainer_costs
from sbpipe.process.gauge_side import LINK, REST, SCORE, WORK, GaugeFailed, Side
from sbpipe.runs.directory import SELECTOR_EVENTS, TRAINER_EVENTS

SIDES = ("trainer", "selector")
_DEADLINE_S = 180.0
"""Far beyond what measuring takes: only a side that hangs is that late."""
_LEAST = 3
"""Steps, and leases, that are waited for."""
_LOOK_S = 0.05
_WARM = 0.2
"""Share of a stretch that goes by before it counts: leases find their length, steps their pace."""
_BOTH, _ALONE, _OTHER = 0.45, 0.15, 0.1
"""Shares of the time: both sides at work in fp32, one of them alone, each other precision."""
_FIRST = "fp32"
_HOPELESS = 4.0
"""How many times as slow as fp32 a precision is only imitated, and not worth a row."""


def measure_both(given: Mapping[str, Any], config: Config, seconds: float) -> dict[str, dict[str, Any]]:
    """What each side found, by its name."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        settings = {**given, **_as_a_run(config), "link.connect": folder}
        sides = {side: Side(side, settings, log) for side in SIDES}
        # A hang must end somewhere, and reading a line has no deadline of its own.
        watchdog = threading.Timer(_DEADLINE_S, _kill, [list(sides.values())])
        watchdog.start()
        try:
            return _Gauge(sides["trainer"], sides["selector"], Path(folder), seconds).measure()
        finally:
            watchdog.cancel()
            for side in sides.values():
                side.stop()


def _as_a_run(config: Config) -> dict[str, Any]:
    """The settings of a run without an end, a test or a checkpoint, in which nobody waits."""
    is_tcp = config.link.bind.startswith("tcp:")
    return {
        "mode": "pipelined",
        "selection.late": "fill",
        "selection.keep": config.selection.keep_rate,
        "train.steps": 0,
        "train.seconds": 1e6,
        "train.ranks": 1,
        "eval.every": 0.0,
        "checkpoint.every": 0,
        # A port of its own: that of the settings may be in use.
        "link.bind": "tcp://127.0.0.1:0" if is_tcp else "auto",
        "link.keys": "",
    }


class _Gauge:
    """Leads both sides through what is to be measured."""

    def __init__(self, trainer: Side, selector: Side, folder: Path, seconds: float) -> None:
        self._trainer, self._selector = trainer, selector
        self._folder, self._seconds = folder, seconds

    def measure(self) -> dict[str, dict[str, Any]]:
        """What each side found, by its name."""
        trainer, selector = self._trainer.hear(), self._selector.hear()
        others = [name for name in selector.pop("precisions") if name != _FIRST]
        trainer |= self._selector.ask(LINK)
        if reason := self._selector.ask(f"{SCORE} {_FIRST}").get("reason"):
            raise GaugeFailed(f"cannot be measured: {reason}")
        both = self._stretch(_BOTH, lambda within: self._has_steps(within) and self._has_leases(within))
        self._trainer.ask(REST)
        alone = self._stretch(_ALONE, self._has_leases)
        first, selector_alone = self._scoring(_FIRST, both), self._scoring(_FIRST, alone)
        assert first is not None, "waited for"
        rows = {_FIRST: first}
        self._selector.ask(REST)
        self._trainer.ask(WORK)
        alone = self._stretch(_ALONE, self._has_steps)
        trainer |= self._training(both) | {"alone": self._training(alone)}
        for name in others:
            if self._selector.ask(f"{SCORE} {name}")["precision"] == name:
                found = self._scoring(name, self._stretch(_OTHER))
                # One whose lease outlasts the stretch is as slow as that.
                if found is not None and found["score_us"] < _HOPELESS * first["score_us"]:
                    rows[name] = found
        return {"trainer": trainer, "selector": selector | {"precisions": rows, "alone": selector_alone}}

    def _stretch(self, share: float, is_enough: Callable[[Window], bool] = lambda within: True) -> Window:
        """Wait while the sides do as they were told: for this share of the time, and until it is enough."""
        time.sleep(_WARM * share * self._seconds)
        begin = time.perf_counter()
        time.sleep(share * self._seconds)
        while not is_enough(within := Window(begin, time.perf_counter())):
            if within.end - begin > _DEADLINE_S:
                raise GaugeFailed(f"cannot be measured: too few steps or leases in {_DEADLINE_S:.0f} s")
            time.sleep(_LOOK_S)
        return within

    def _has_steps(self, within: Window) -> bool:
        return bool(self._training(within)["steps"] >= _LEAST)

    def _has_leases(self, within: Window) -> bool:
        found = self._scoring(_FIRST, within)
        return found is not None and found["leases"] >= _LEAST

    def _training(self, within: Window) -> dict[str, Any]:
        return trainer_costs(_events_in(self._folder / TRAINER_EVENTS), within)

    def _scoring(self, precision: str, within: Window) -> dict[str, Any] | None:
        events = _events_in(self._folder / SELECTOR_EVENTS.format(f"plan-{precision}"))
        return selector_costs(events, within)


def _events_in(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that is still being written."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _kill(sides: list[Side]) -> None:
    for side in sides:
        side.process.kill()
