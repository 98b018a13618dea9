"""A trainer and its selectors on two hosts that are network namespaces of this one, with a slow line between.

`PYTHONPATH=.:tests python -m support.two_hosts --selectors 8 --latency-ms 50 --stall-s 2 --every-s 20` (root)
runs both roles over TCP with keys, each with shared memory of its own, through a proxy that delays and stops,
and says what `sbpipe plan` says of the costs that the run measured, beside what the run met.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sbpipe.bench.faults.proxy import Proxy, Weather
from sbpipe.commands.plan import forecasts
from sbpipe.config import Config, from_dict
from sbpipe.errors import ConfigError
from sbpipe.link.addresses import parse
from sbpipe.link.connection import read_connection, write_connection
from sbpipe.machine.planner import Costs

ADDRESS = ("10.77.0.1", "10.77.0.2")
SETTINGS = {
    "train.steps": 200,
    "train.threads": 1,
    "model.name": "small_resnet",
    "model.options": {"depth": 8},
    "selection.keep": 0.5,
    "selector.threads": 1,
    "selector.precision": "fp32",
    "eval.every": 0,
    "checkpoint.every": 0,
    "link.lost_after_s": 20.0,
}
_END_S = 60.0


@dataclass(frozen=True)
class Line:
    """The selectors on the other host, and the line to them."""

    selectors: int
    latency_ms: float
    stall_s: float = 0.0
    every_s: float = 20.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--selectors", type=int, default=8)
    parser.add_argument("--latency-ms", type=float, default=50.0)
    parser.add_argument("--stall-s", type=float, default=0.0)
    parser.add_argument("--every-s", type=float, default=20.0)
    parser.add_argument("--set", action="append", default=[], dest="assignments")
    parser.add_argument("--far", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    line = Line(args.selectors, args.latency_ms, args.stall_s, args.every_s)
    if args.far:
        _serve_far(line, args.far)
        return
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        given = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={_toml(value)}")]
        given += [word for text in args.assignments for word in ("--set", text)]
        train(run_dir, line, given, wait_s=3600.0)
        _tell(line, run_dir)


def train(run_dir: Path, line: Line, settings: Sequence[str], *, wait_s: float) -> None:
    """Both roles, each on its host, until the trainer's end."""
    tests = Path(__file__).parents[1]
    places = [str(tests.parent), str(tests), os.environ.get("PYTHONPATH", "")]
    own = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    bound = ["--run-dir", str(run_dir), "--bind", f"tcp://{ADDRESS[0]}:0"]
    near = [sys.executable, "-m", "sbpipe", "trainer", *bound, *settings]
    words = [word for name, value in asdict(line).items() for word in (f"--{name.replace('_', '-')}", value)]
    far = [sys.executable, "-m", "support.two_hosts", *map(str, words), "--far", str(run_dir)]
    with _two_hosts() as hosts:
        roles = [
            subprocess.Popen([*_inside(host), *command], env=own)
            for host, command in zip(hosts, (near, far), strict=True)
        ]
        try:
            assert roles[0].wait(wait_s) == 0
            roles[1].wait(_END_S)
        finally:
            for process in roles:
                process.terminate()
                process.wait(_END_S)


def lacking() -> str:
    """Why there can be no such hosts here; "" if there can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    for tool in ("ip", "unshare"):
        if shutil.which(tool) is None:
            return f"no {tool}"
    name = f"sbpipe-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


def _toml(value: object) -> str:
    return "{depth = 8}" if isinstance(value, dict) else json.dumps(value)


def _inside(host: str) -> list[str]:
    """In this host's network, with a /dev/shm of its own."""
    own = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
    return ["ip", "netns", "exec", host, "unshare", "--mount", "sh", "-c", own, "sh"]


@contextlib.contextmanager
def _two_hosts() -> Iterator[list[str]]:
    """Two namespaces with a cable between them."""
    hosts = [f"sbpipe-{side}-{os.getpid()}" for side in ("near", "far")]
    cable = [f"sb{side}{os.getpid()}" for side in "nf"]
    commands = [f"ip netns add {host}" for host in hosts]
    commands.append(f"ip link add {cable[0]} type veth peer name {cable[1]}")
    for host, end, address in zip(hosts, cable, ADDRESS, strict=True):
        commands.append(f"ip link set {end} netns {host}")
        commands.append(f"ip -n {host} addr add {address}/24 dev {end}")
        commands += [f"ip -n {host} link set {each} up" for each in ("lo", end)]
    try:
        for command in commands:
            subprocess.run(command.split(), check=True)
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host], check=False)


def _serve_far(line: Line, run_dir: Path) -> None:
    """On the selectors' host: the proxy, and the selectors behind it."""
    while True:
        with contextlib.suppress(ConfigError):
            connection = read_connection(run_dir)
            break
        time.sleep(0.2)
    weather = Weather(latency_s=line.latency_ms / 1e3)
    addresses = [parse("link.connect", endpoint) for endpoint in connection.endpoints]
    proxy = Proxy([(address.host, address.port) for address in addresses], weather)
    if line.stall_s:
        threading.Thread(target=_stall, args=(weather, line), daemon=True).start()
    elsewhere = run_dir.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    control, bulk = (f"tcp://127.0.0.1:{port}" for port in proxy.ports)
    write_connection(elsewhere, replace(connection, control=control, bulk=bulk))
    count = ["--instances", str(line.selectors), "--device", "cpu", "--set", "selector.threads=1"]
    subprocess.run([sys.executable, "-m", "sbpipe", "selector", "--connect", str(elsewhere), *count])
    proxy.close()


def _stall(weather: Weather, line: Line) -> None:
    while True:
        time.sleep(line.every_s - line.stall_s)
        weather.is_up_cut = weather.is_down_cut = True
        time.sleep(line.stall_s)
        weather.is_up_cut = weather.is_down_cut = False


def _tell(line: Line, run_dir: Path) -> None:
    """The run beside the forecast of its own costs."""
    summary = json.loads((run_dir / "summary.json").read_text())
    config = from_dict(json.loads((run_dir / "config.json").read_text()))
    costs = costs_of(summary, config, line.selectors, line.latency_ms)
    if line.stall_s:
        costs = replace(costs, stall_ms=1e3 * line.stall_s, stall_every_ms=1e3 * line.every_s)
    plan = forecasts(costs, config)[0]
    # What is filled before the first selector is ready is no matter of the line.
    late = summary["fill.late"] / (summary["trained"] - summary["fill.starting"])
    said = [
        f"{line.selectors} selectors, {line.latency_ms:.0f} ms one way, stalls of {line.stall_s:.0f} s",
        f"steps of {costs.step_ms:.0f} ms, {costs.score_us:.0f} us a candidate",
        f"weights {costs.transfer_ms:.0f} ms",
        f"staleness {summary['staleness.mean']:.2f} (forecast {plan.staleness:.2f})",
        f"95 % within {summary['staleness.p95']}, greatest {summary['staleness.max']}",
        f"filled {late:.3f} (forecast {plan.fills:.3f})",
        f"the loop waited {summary['trainer.idle_ratio']:.3f}",
        f"lost {summary['selector.lost']}, expired {summary['lease.expired']}",
    ]
    sys.stdout.write("; ".join(said) + "\n")


def costs_of(summary: dict[str, float], config: Config, selectors: int, latency_ms: float) -> Costs:
    """What the run itself measured; what others do on the machine is in it."""
    worked_s = sum(summary[f"selector.{stage}_s"] for stage in ("view", "score", "select", "apply"))
    return Costs(
        batch_size=config.train.batch_size,
        step_ms=summary["trainer.step_ms"] + summary["trainer.steer_ms"],
        score_us=1e6 * worked_s / summary["selector.scored"],
        load_ms=summary["trainer.view_ms"],
        transfer_ms=max(0.0, (summary["sync.transfer_ms"] or 0.0) - 2 * latency_ms),
        latency_ms=latency_ms,
        selectors=selectors,
    )


if __name__ == "__main__":
    main()
