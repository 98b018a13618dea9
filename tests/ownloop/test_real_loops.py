"""Own loops as users run them: real scripts, real selectors, real kills."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.runs import HANG_S

SCRIPT = """
import os, sys, time, torch, sbpipe
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

class Points(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, i):
        return {"x": torch.full((6,), i / 400.0), "y": i % 3}

def losses(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"], reduction="none") * SCALE

SCALE = float(os.environ.get("SCALE", 1))
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = sbpipe.select(
    DataLoader(Points(), 16, num_workers=1), model, optimizer, losses=losses, keep=0.5, run_dir="run",
    selector=os.environ.get("SELECTOR") or None,
    settings={"link.lost_after_s": 120.0, "selection.late": os.environ.get("LATE", "wait")},
)
steps = 0
while not os.path.exists("enough"):
    for batch in loader:
        nan = float("nan") if steps + 1 == int(os.environ.get("NAN_AT", 0)) else 1.0
        loader.weigh(losses(model, batch) * nan).backward()
        optimizer.step(); optimizer.zero_grad()
        steps += 1
        open("steps", "w").write(str(steps))
        if os.path.exists("fall"):
            os.kill(os.getpid(), 9)
        time.sleep(0.02)
        while os.path.exists("evaluating"):
            time.sleep(0.02)
print("steps", steps)
"""


class Loop:
    """A running script, in a folder of its own."""

    def __init__(self, folder: Path, process: "subprocess.Popen[str]") -> None:
        self.folder, self.process = folder, process
        self._events: list[dict[str, Any]] = []
        self._num_bytes = 0

    @property
    def events(self) -> list[dict[str, Any]]:
        """All so far; each line is read once, for a loop writes thousands while it is waited for."""
        path = self.folder / "run" / "events-trainer.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._num_bytes)
                whole = file.read().rpartition(b"\n")[0]
            self._num_bytes += len(whole) + bool(whole)
            self._events += [json.loads(line) for line in whole.splitlines()]
        return self._events

    @property
    def steps(self) -> int:
        text = (self.folder / "steps").read_text() if (self.folder / "steps").exists() else ""
        return int(text or 0)

    def ready(self) -> list[str]:
        return [
            event["selector"]
            for event in self.events
            if event["kind"] == "selector" and event["state"] == "ready"
        ]

    def wait(self, what: Callable[[], object]) -> None:
        give_up = time.monotonic() + HANG_S
        while not what():
            assert time.monotonic() < give_up, "it never came"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)

    def finish(self) -> str:
        (self.folder / "enough").touch()
        out, err = self.process.communicate(timeout=HANG_S)
        assert self.process.returncode == 0, err
        return out + err


@contextmanager
def running(folder: Path, **environment: str) -> Iterator[Loop]:
    (folder / "train.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "train.py"],
        cwd=folder,
        env={**os.environ, "SELECTOR": "cpu", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Loop(folder, process)
    finally:
        process.kill()
        process.communicate()


def pid_of(selector: str) -> int:
    return int(selector.split("-")[-2])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def slots() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("sbpipe-*")}


def own_slots(loop: Loop) -> set[str]:
    """Those that the loop's process has mapped."""
    maps = Path(f"/proc/{loop.process.pid}/maps").read_text()
    return {name for name in slots() if name in maps}


def test_a_script_without_a_main_guard_selects_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path) as loop:
        loop.wait(lambda: loop.ready() and loop.steps > 20)
        pid = pid_of(loop.ready()[0])
        told = loop.finish()  # without `close`: the end of the script is the end of the run
    assert "fidelity" in told
    assert not is_alive(pid)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["selector.scored"] > 0
    assert not (tmp_path / "run" / "job.pkl").exists()


def test_a_loop_that_diverges_fails_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "evaluating").touch()
    with running(tmp_path, NAN_AT="3", LATE="fill") as loop:
        loop.wait(lambda: loop.steps)
        before = own_slots(loop)
        assert before
        (tmp_path / "evaluating").unlink()
        _, told = loop.process.communicate(timeout=HANG_S)
        assert loop.process.returncode == 1
    assert loop.steps == 2
    assert told.count("Traceback") == 1, told
    assert "DivergedError: the run has diverged: the training loss is nan at step 2. Lower optim.lr" in told
    assert "worse" not in told
    assert "topped" not in told
    (failed,) = [event["error"] for event in loop.events if event["kind"] == "failed"]
    assert failed.startswith("the run has diverged: ")
    assert not (tmp_path / "run" / "summary.json").exists()
    assert not (tmp_path / "run" / "job.pkl").exists()
    assert not before & slots()
    assert not any(is_alive(pid_of(name)) for name in loop.ready())


@pytest.mark.parametrize("is_evaluating", [False, True])
def test_a_selector_that_is_killed_comes_back_and_the_loop_goes_on(
    is_evaluating: bool, tmp_path: Path
) -> None:
    with running(tmp_path, LATE="fill") as loop:
        loop.wait(lambda: loop.ready())
        first, steps = loop.ready()[0], loop.steps
        if is_evaluating:
            (tmp_path / "evaluating").touch()
        os.kill(pid_of(first), signal.SIGKILL)
        loop.wait(lambda: loop.ready()[-1] != first)
        (tmp_path / "evaluating").unlink(missing_ok=True)
        loop.wait(lambda: loop.steps > steps + 20)
        assert "starting it again" in loop.finish()


def test_a_selector_that_does_not_hear_the_goodbye_is_ended_with_the_loop(tmp_path: Path) -> None:
    with running(tmp_path, LATE="fill") as loop:
        loop.wait(lambda: loop.ready())
        pid, before = pid_of(loop.ready()[0]), own_slots(loop)
        os.kill(pid, signal.SIGSTOP)
        loop.finish()
    assert not is_alive(pid)
    assert not before & slots()


def test_a_loop_that_is_killed_leaves_no_selector(tmp_path: Path) -> None:
    with running(tmp_path) as loop:
        loop.wait(lambda: loop.ready())
        pid, before = pid_of(loop.ready()[0]), own_slots(loop)
        assert before
        loop.process.kill()
        loop.process.wait(HANG_S)
        give_up = time.monotonic() + HANG_S
        while is_alive(pid):
            assert time.monotonic() < give_up, "the selector outlived its loop"
            time.sleep(0.05)
    assert not before & slots(), "the selector clears away what the loop could not"


@pytest.mark.parametrize("scale", ["1", "3"])
def test_the_same_script_elsewhere_selects_if_it_computes_the_same(scale: str, tmp_path: Path) -> None:
    with running(tmp_path, SELECTOR="") as loop:
        loop.wait(lambda: (tmp_path / "run" / "connection.json").exists())
        role = {"SBPIPE_ROLE": "selector", "SBPIPE_CONNECT": "run", "SCALE": scale}
        other = subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env={**os.environ, **role},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            if scale == "1":
                loop.wait(lambda: loop.ready() or other.poll() is not None)
                loop.finish()
            _, told = other.communicate(timeout=HANG_S)
        finally:
            other.kill()
            other.wait()
        if scale == "1":
            assert other.returncode == 0, told
        else:
            assert "do not train the same thing; probe: trainer" in told
