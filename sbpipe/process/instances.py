"""`sbpipe selector --instances N`: several selectors of one host, started and ended together. Knows no torch.

Each is an ordinary selector with its own device, or its own cores on the CPU. When weights come from another
host, one of them pulls for all (`weights/relay.py`); they agree on which one by themselves.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sbpipe.config import Config
from sbpipe.errors import ConfigError
from sbpipe.interrupts import STOPPED
from sbpipe.machine.cores import computes_on_cpu
from sbpipe.process import MAX_RESTARTS, assignments, role_command
from sbpipe.process.child import die_with_parent

MOST = 1024
_LOOK_S = 0.2
_LET_GO_S = 10.0


@dataclass
class Instance:
    """One selector's process."""

    number: int
    command: list[str]
    cores: list[int] | None
    """None = it may use all."""
    restarts: int = 0
    process: subprocess.Popen[str] = field(init=False)

    def start(self) -> None:
        """Start it; its output is passed on to this process's, with its number."""
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Ctrl-C goes to the terminal's whole session: only this process may get it, and passes it on.
            start_new_session=True,
            preexec_fn=self._prepare,
        )
        threading.Thread(target=_pass_on, args=(self.number, self.process), daemon=True).start()

    def _prepare(self) -> None:
        die_with_parent()
        if self.cores:
            os.sched_setaffinity(0, self.cores)


def instances_of(config: Config, given: Mapping[str, Any], count: int, *more: str) -> list[Instance]:
    """`count` selectors, with devices assigned in turn; `more` are arguments for all of them."""
    if not 1 <= count <= MOST:
        raise ConfigError("--instances", count, f"must be 1 to {MOST}", "Leave it out for one selector")
    names = config.selector.devices
    if count < len(names):
        reason = f"selector.device = {config.selector.device!r} names {len(names)} devices"
        raise ConfigError("--instances", count, reason, "Start at least one selector for each")
    made = []
    for number in range(count):
        device = names[number % len(names)]
        own: dict[str, Any] = {**given, "selector.device": device}
        cores = shared_cores(number, count, config.selector.threads) if computes_on_cpu(device) else None
        if cores:
            own["selector.threads"] = len(cores)
        made.append(Instance(number, role_command("selector", *assignments(own), *more), cores))
    return made


def shared_cores(number: int, count: int, threads: int, available: list[int] | None = None) -> list[int]:
    """The cores of one of several selectors on the CPU: equal shares of neighbours, reused if too few."""
    cores = sorted(os.sched_getaffinity(0)) if available is None else available
    each = min(len(cores), threads or max(1, len(cores) // count))
    return [cores[(number * each + place) % len(cores)] for place in range(each)]


def run_instances(instances: list[Instance]) -> int:
    """Start all and wait until they end; returns the exit code. A killed selector is restarted."""
    is_stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_stopped.set())
    for one in instances:
        one.start()
    running, codes = list(instances), list[int]()
    while running and not is_stopped.wait(_LOOK_S):
        for one in [one for one in running if one.process.poll() is not None]:
            code = one.process.returncode
            if code < 0 and one.restarts < MAX_RESTARTS:
                one.restarts += 1
                _say(f"selector {one.number} was ended by signal {-code}; starting it again")
                one.start()
                continue
            running.remove(one)
            codes.append(code if code >= 0 else 128 - code)
            if code:
                _say(f"selector {one.number} ended with code {codes[-1]}; {len(running)} are left")
    _stop(running)
    return STOPPED if is_stopped.is_set() else max(codes, default=0)


def _stop(running: list[Instance]) -> None:
    for one in running:
        one.process.send_signal(signal.SIGTERM)
    give_up = time.monotonic() + _LET_GO_S
    for one in running:
        try:
            one.process.wait(max(0.0, give_up - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()


def _pass_on(number: int, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        _say(f"[{number}] {line.rstrip()}")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
