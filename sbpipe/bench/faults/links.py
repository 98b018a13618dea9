"""Faults of the link: the roles are started apart, and the selector reaches its trainer through a proxy."""

import time
from collections.abc import Callable
from dataclasses import replace

from sbpipe.bench.faults.proxy import Proxy, Weather
from sbpipe.bench.faults.trial import OUTAGE_S, Command, Trial
from sbpipe.errors import ConfigError
from sbpipe.link.addresses import parse
from sbpipe.link.connection import Connection, read_connection, write_connection


def through_a_proxy(trial: Trial) -> Command:
    """Start both roles over TCP, with a proxy between them."""
    trainer = trial.start(
        "trainer", "--run-dir", str(trial.path), "--bind", "tcp://127.0.0.1:0", *trial.settings
    )
    connection: Connection = trial.wait_for("an address", lambda: _connection(trial))
    addresses = [parse("link.connect", endpoint) for endpoint in connection.endpoints]
    trial.weather = Weather()
    trial.proxy = Proxy([(address.host, address.port) for address in addresses], trial.weather)
    trial.on_close(trial.proxy.close)
    elsewhere = trial.folder / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    control, bulk = (f"tcp://127.0.0.1:{port}" for port in trial.proxy.ports)
    write_connection(elsewhere, replace(connection, control=control, bulk=bulk))
    trial.start("selector", "--connect", str(elsewhere), "--set", "selector.threads=1")
    return trainer


def _connection(trial: Trial) -> Connection | None:
    try:
        return read_connection(trial.path)
    except ConfigError:
        return None


def cut(*, up: bool, down: bool) -> Callable[[Trial, Command], Command]:
    """Nothing passes for a while, in both directions or in one."""

    def inflict(trial: Trial, run: Command) -> Command:
        trial.begin_fault()
        trial.weather.is_up_cut, trial.weather.is_down_cut = up, down
        time.sleep(OUTAGE_S)
        trial.weather.is_up_cut = trial.weather.is_down_cut = False
        return run

    return inflict


def late(seconds: float) -> Callable[[Trial, Command], Command]:
    """Everything comes late, until the end."""

    def inflict(trial: Trial, run: Command) -> Command:
        trial.begin_fault()
        trial.weather.latency_s = seconds
        return run

    return inflict


def stalling(trial: Trial, run: Command) -> Command:
    """The effect of lost packets on TCP: everything behind them waits."""
    trial.begin_fault()
    while run.poll() is None:
        trial.weather.latency_s = 1.0
        time.sleep(0.3)
        trial.weather.latency_s = 0.0
        time.sleep(2.0)
    return run


def resetting(trial: Trial, run: Command) -> Command:
    """Connections break every second, until the end."""
    trial.begin_fault()
    assert trial.proxy is not None
    while run.poll() is None:
        trial.proxy.reset()
        time.sleep(1.0)
    return run


def flipping(trial: Trial, run: Command) -> Command:
    """One piece in a hundred arrives with a wrong bit, until the end."""
    trial.begin_fault()
    trial.weather.flip_share = 0.01
    return run
