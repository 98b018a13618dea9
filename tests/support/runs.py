"""Small runs for tests: a tiny config, both roles in process, real processes with deadlines."""

import json
import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sbpipe.__main__ import main
from sbpipe.config import Config, resolve, toml_value
from sbpipe.link.ports import Port
from sbpipe.process import roles, selector_settings
from sbpipe.process.inline import INLINE
from sbpipe.records import Lease, Selection
from sbpipe.runs.directory import TRAINER_EVENTS, RunDir
from sbpipe.runs.events import EventLog
from sbpipe.trainer.engine import Engine
from sbpipe.trainer.run import TrainerRun
from sbpipe.trainer.setup import prepare
from support.loaded import show_as, start_loaded

HANG_S = 300.0
"""How long a test waits for what must come: so long that only a hang misses it. On a busy machine the start
of one process alone may take 20 s.
"""

SMALL: dict[str, Any] = {
    "data.examples": 600,
    "data.test_examples": 100,
    "model.options": {"width": 8},
    # What most tests mean: on a machine with accelerators `auto` would take those.
    "train.device": "cpu",
    "selector.device": "cpu",
    "train.batch_size": 16,
    "train.steps": 12,
    "selection.ramp": False,  # so few steps would be over before it lets scores count
    # So few steps would also be over before a selector is up. Tests of fills set their own.
    "selection.late": "wait",
    "eval.every": 0.0,
    "checkpoint.every": 0,
    # A healthy selector that gets no core for some seconds must not count as lost: its leases would be
    # answered by the fallback, and the run would be another. Tests of a loss set their own.
    "link.lost_after_s": 120.0,
    "link.hung_after_s": 600.0,
}


def small(**changes: Any) -> Config:
    """The tiny config with changes; `sync__interval` stands for `sync.interval`."""
    return resolve(SMALL | {key.replace("__", "."): value for key, value in changes.items()})


def train_inline(config: Config, path: Path, *, resume: bool = False) -> dict[str, Any]:
    """A run of both roles in this process."""
    return roles.run_inline(config, path, resume=resume, overwrite=False, on_open=lambda run_dir: None)


def train_over(
    config: Config, path: Path, wrap: Callable[[Port], Port] = lambda port: port, *, resume: bool = False
) -> dict[str, Any]:
    """A run whose selector answers in this process, over a port that `wrap` may make worse; in any mode."""
    setup = prepare(config)
    run_dir = RunDir.open(path, resume=resume, overwrite=False)
    if not resume:
        run_dir.write_config(config)
    events, slots = EventLog(run_dir.path / TRAINER_EVENTS, "trainer"), setup.slots()
    port = wrap(roles.inline_port(setup, slots, EventLog(None, "selector")))
    engine = Engine(setup.job(), port, slots, events, setup.spans)
    engine.admit(INLINE, "cpu")
    return TrainerRun(setup, run_dir, engine, events, began=time.perf_counter()).run(resume=resume)


def settings(**changes: Any) -> list[str]:
    """The tiny config as command-line arguments."""
    given = SMALL | {key.replace("__", "."): value for key, value in changes.items()}
    return [part for key, value in given.items() for part in ("--set", f"{key}={toml_value(value)}")]


def sbpipe(*arguments: str, timeout_s: float = HANG_S, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "sbpipe", *without_report(arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        **kwargs,
    )


def without_report(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """A run whose page nobody will look at."""
    return (*arguments, "--no-report") if arguments and arguments[0] == "run" else arguments


def start(*arguments: str, **kwargs: Any) -> subprocess.Popen[str]:
    """Start a command."""
    command = [sys.executable, "-m", "sbpipe", *without_report(arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs)


@contextmanager
def started(*arguments: str, **kwargs: Any) -> Iterator["Forked"]:
    """A command that does not outlive the test."""
    process = Forked(*arguments, **kwargs)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=HANG_S)


class SlowMotion:
    """What makes each step of a run take a quarter of a second, of which it computes almost nothing.

    A test then does what it must do before the run ends, and `ends` lets what is left go by quickly. Without,
    a run would have to train hundreds of steps more than any test looks at.
    """

    loss = "support.losses:in_slow_motion"
    """Its `loss.name`: with the values of cross entropy."""

    def __init__(self, folder: Path, pace_s: float = 0.25) -> None:
        """`pace_s` is what each pass with gradients takes: a step, and with some policies a batch scored."""
        self._file = folder / "slowly"
        self._file.write_text(str(pace_s))
        tests = str(Path(__file__).parents[1])
        path = os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH"))))
        self.env = {**os.environ, "SLOWLY": str(self._file), "PYTHONPATH": path}
        """The environment of its processes."""

    def ends(self) -> None:
        """At once, and in all of them."""
        self._file.unlink()


def summary_of(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "summary.json").read_text()))


def events_of(path: Path, kind: str) -> list[dict[str, Any]]:
    # The last line of a run at work may be half written.
    lines = (path / "events-trainer.jsonl").read_text().split("\n")[:-1]
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def wait_for(
    what: str, condition: Callable[[], Any], deadline_s: float = HANG_S, every_s: float = 0.05
) -> Any:
    """Poll until a condition holds."""
    give_up = time.monotonic() + deadline_s
    while time.monotonic() < give_up:
        found = condition()
        if found:
            return found
        time.sleep(every_s)
    raise AssertionError(f"{what} did not happen within {deadline_s} s")


def has_steps(path: Path, count: int) -> Callable[[], bool]:
    """Whether a run has trained so many steps."""

    def check() -> bool:
        events = path / "events-trainer.jsonl"
        return events.exists() and events.read_text().count('"kind":"step"') >= count

    return check


def answer_all(lease: Lease, *, keep_every: int = 3, version: int | None = None) -> Selection:
    """A selection that keeps every n-th candidate of a lease until it has enough, with scores 0, 1, 2, ..."""
    kept = np.arange(0, lease.num_candidates, keep_every, dtype=np.int32)[: lease.enough]
    considered = int(kept[-1]) + 1 if len(kept) == lease.enough else lease.num_candidates
    scores = np.arange(considered, dtype=np.float32)
    probability = np.full(considered, 1 / keep_every, np.float32)
    return Selection(lease.lease_id, lease.version if version is None else version, scores, kept, probability)


# --- two real processes without the seconds that importing torch takes ----------------------------

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    # The last two are loaded by the first optimizer step, and by ranks that cut a model up.
    ["sbpipe.process.roles", "sbpipe.cli", "torch._dynamo", "torch.distributed.fsdp"]
)


class Forked:
    """A command in a process of its own that has torch loaded already; used like what `start` returns.

    For commands whose start is not what the test is about: on their own these, and the trainer and selectors
    of a run, would spend their time loading torch.
    """

    def __init__(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        is_apart: bool = False,
        module: str = "sbpipe",
    ) -> None:
        """`is_apart` keeps what it writes to stderr apart from the rest; it is `python -m MODULE`."""
        folder = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, folder)
        self._said = [folder / name for name in ("stdout", "stderr" if is_apart else "stdout")]
        for path in self._said:
            path.touch()
        wanted = {**os.environ} if env is None else env
        given = (module, without_report(arguments), wanted, str(cwd or Path.cwd()), *map(str, self._said))
        self._process = _PROCESSES.Process(target=be_command, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it works, minus the signal that killed it."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same."""
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Only while it works: its number may be another's afterwards."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """At once."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """As a job scheduler does."""
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float = HANG_S) -> tuple[str, str]:
        """What it wrote, once it has ended."""
        self._process.join(timeout)
        assert self.poll() is not None, f"it did not end within {timeout:.0f} s"
        out, err = (path.read_text() for path in self._said)
        return out, err


def forked(*arguments: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; as `sbpipe` does."""
    command = Forked(*arguments, **kwargs, is_apart=True)
    out, err = command.communicate()
    assert command.returncode is not None
    return subprocess.CompletedProcess(list(arguments), command.returncode, out, err)


def be_command(
    module: str,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    folder: str,
    stdout: str,
    stderr: str,
) -> None:
    """Become a command."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    sys.argv = [module, *arguments]
    with suppress(OSError):
        show_as([sys.executable, "-m", module, *arguments], environment)
    start_loaded()
    # The module itself is loaded already, under its own name: what runs it warns of that.
    if module == "sbpipe":
        main()
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def in_loaded(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of a module gives in a process of its own, in which all that it starts is forked."""
    ours, theirs = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=tell, args=(theirs, function, *arguments))
    process.start()
    theirs.close()
    try:
        assert ours.poll(2 * HANG_S), "it does not end"
        return ours.recv()
    finally:
        process.kill()
        process.join()


def tell(connection: Connection, function: Callable[..., Any], *arguments: Any) -> None:
    """Give the result to another process."""
    start_loaded()
    connection.send(function(*arguments))


def train_over_the_wire(config: Config, path: Path, *, resume: bool = False) -> dict[str, Any]:
    """A run whose trainer is this process and whose selector is one of its own, behind real sockets."""
    given = selector_settings(config) | {"link.connect": str(path)}
    selector = _PROCESSES.Process(target=select_for, args=(given,), daemon=True)
    selector.start()
    try:
        return roles.run_trainer(config, path, resume=resume, overwrite=False, on_open=lambda run_dir: None)
    finally:
        selector.join(10.0)
        selector.kill()


def select_for(given: dict[str, Any]) -> None:
    """Be the selector of a run."""
    torch.set_num_threads(1)
    roles.run_selector(resolve(given), given)
