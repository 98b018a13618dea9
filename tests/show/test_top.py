"""`sbpipe top`: runs as text that fits any terminal, and a terminal that is left as it was found."""

import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.runs import sbpipe, wait_for

from sbpipe.runs.directory import RunDir, is_held
from sbpipe.show.live.top import View, block_of, cut, line_of, lines_of, painted, sparkline

HEAD = {
    **{
        "mode": "pipelined",
        "policy": "sb",
        "seed": 3,
        "share": 0.5,
        "step": 1234,
        "loss": 0.4321,
        "error": 0.0625,
        "left_s": 75.0,
    },
    **{
        "staleness": 1.07,
        "idle": 0.125,
        "selector_idle": 0.25,
        "keep_rate": 0.333,
        "candidates_per_s": 4934.0,
        "queue": 18,
    },
}


def view(name: str = "a", state: str = "running", **more: Any) -> View:
    return View(
        {"name": name, "state": state, **HEAD},
        errors=[0.9, 0.0625],
        losses=[2.0, 1.0, 0.4321],
        fidelity=0.86,
        **more,
    )


# --- what is written ------------------------------------------------------------------------------


def test_a_block_tells_how_a_run_stands() -> None:
    selectors = [
        {"name": "s1", "state": "ready"},
        {"name": "s2", "state": "lost", "reason": "silent for 4 s"},
    ]
    text = "\n".join(block_of(view(selectors=selectors, warnings=["a lease expired"])))
    for told in (
        "running",
        "50%",
        "step 1,234",
        "loss 0.432",
        "error 6.2%",
        "left 1m15s",
        "staleness 1.07",
        "idle  12.5%",
    ):
        assert told in text
    for told in (
        "idle  25.0%",
        "fidelity 0.86",
        "keep 33.3%",
        "4,934 candidates/s",
        "queue 18",
        "90.0% → 6.2%",
        "! a lease expired",
    ):
        assert told in text
    assert "1 ready: s1  1 lost: s2 (silent for 4 s)" in text


def test_a_block_tells_of_the_loop_only_what_is_known() -> None:
    assert not any("loop" in line for line in block_of(view()))
    loop = {"swing": 2.31, "strength": 0.84, "ess": 0.9349, "guard": 1.0}
    steered = View({"name": "a", "state": "running", **HEAD, **loop}, swings=[None, 1.0, 2.31])
    assert "  loop      swing 2.3  strength 0.84  ess 0.93" in block_of(steered)
    assert "swing ▁█ 1.0 → 2.3" in block_of(steered)[-1]
    guarded = View({"name": "a", "state": "running", **HEAD, "swing": 3.0, "guard": 0.5})
    assert "  loop      swing 3.0  guard 0.50" in block_of(guarded)


def test_a_run_that_has_only_begun_is_shown_too() -> None:
    new = View({"name": "new", "state": "waiting"})
    assert block_of(new)[0] == "● new  waiting   "
    assert "error –" in line_of(new)


def test_active_runs_come_first_and_whole_when_room_is_short() -> None:
    views = [view("done1", "finished"), view("going"), view("done2", "finished")]
    lines = lines_of(views, 200, 10, ["above"])
    assert lines == ["above", "", *block_of(view("going")), "", line_of(views[0]), line_of(views[2])]
    assert lines_of(views, 200, 9, ["above"]) == [
        *lines[:8],
        "… 2 more lines; to see a single run: sbpipe top PATH",
    ]


def test_all_runs_are_whole_when_there_is_room() -> None:
    lines = lines_of([view("a"), view("b", "finished")], 200, 40)
    assert lines == ["", *block_of(view("a")), "", *block_of(view("b", "finished"))]


@given(
    names=st.lists(st.text(min_size=1, max_size=30), max_size=12),
    width=st.integers(1, 150),
    height=st.integers(1, 50),
)
def test_any_runs_fit_any_terminal(names: list[str], width: int, height: int) -> None:
    states = ("running", "finished", "failed")
    lines = lines_of([view(name, states[k % 3]) for k, name in enumerate(names)], width, height, ["above"])
    assert len(lines) <= height
    assert all(columns(line) <= width and line.isprintable() for line in lines)


def columns(line: str) -> int:
    widths = (
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF")
        for letter in line
    )
    return sum(widths)


def test_wide_letters_take_two_columns() -> None:
    assert cut("学習学習", 8) == "学習学習"
    assert cut("学習学習", 7) == "学習学…"
    assert cut("学習学習", 6) == "学習…"


def test_a_name_cannot_command_the_terminal() -> None:
    assert cut("evil\x1b[2J\r\nname", 40) == "evil?[2J??name"


def test_a_sparkline_rises_with_its_values() -> None:
    assert sparkline([float(k) for k in range(8)], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([None, 4.0, 4.0, 0.0, 0.0], 2) == "█▁"
    assert sparkline([5.0, 5.0], 8) == "▁▁"
    assert sparkline([], 8) == ""


def test_paint_changes_no_letter() -> None:
    for line in [*block_of(view("a", "failed", warnings=["w"])), line_of(view())]:
        assert re.sub(r"\x1b\[\d+m", "", painted(line)) == line
    assert "\x1b[31m" in painted(block_of(view("a", "failed"))[0])


# --- what is read ---------------------------------------------------------------------------------


def write(path: Path, *, age_s: float, status: str | None) -> Path:
    """A small run that wrote its last event some seconds ago."""
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    t = time.time() - age_s
    progress = {"share": 0.5, "step": 6, "loss": 0.5, "error": 0.25, "left_s": 9.0, "elapsed_s": 9.0}
    events = [{"kind": "start", "mode": "pipelined"}, {"kind": "progress", **progress}]
    events += [{"kind": "summary", "status": status, "steps": 6}] if status else []
    (path / "events-trainer.jsonl").write_text(
        "".join(json.dumps({"t": t, "clock": t, **event}) + "\n" for event in events)
    )
    return path


def test_a_lock_is_seen_without_touching_it(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "run")
    run_dir = RunDir.open(tmp_path / "run", resume=False, overwrite=False)
    assert is_held(tmp_path / "run")
    run_dir.close()
    assert not is_held(tmp_path / "run")


def test_once_prints_plainly_and_tells_a_killed_run_from_a_slow_one(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "done", age_s=60.0, status="finished")
    write(tmp_path / "runs" / "gone", age_s=8.0, status=None)
    write(tmp_path / "runs" / "slow", age_s=8.0, status=None)
    lock = RunDir.open(tmp_path / "runs" / "slow", resume=True, overwrite=False)
    done = sbpipe("top", cwd=tmp_path)
    lock.close()
    assert (done.returncode, "\x1b" in done.stdout) == (0, False)
    assert "1 active, 2 ended" in done.stdout
    assert "● slow  running" in done.stdout
    assert "● gone  killed, silent for" in done.stdout
    assert "sbpipe run --run-dir runs/gone --resume" in done.stdout
    assert "● done  finished" in done.stdout


def test_a_path_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    done = sbpipe("top", "nowhere", cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere does not exist" in done.stderr


# --- the terminal ---------------------------------------------------------------------------------


class Terminal:
    """A real terminal with `sbpipe top` in it."""

    def __init__(self, path: Path) -> None:
        self.ours, theirs = os.openpty()
        self.resize(80, 24)
        self.modes = termios.tcgetattr(self.ours)
        command = [sys.executable, "-m", "sbpipe", "top", str(path)]
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self.shown = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def has(self, text: str) -> bool:
        while select.select([self.ours], [], [], 0)[0]:
            try:
                self.shown += os.read(self.ours, 65536).decode(errors="replace")
            except OSError:  # the other side is closed
                break
        return text in self.shown

    def end(self) -> int:
        code = self.process.wait(30)
        self.has("")
        return code


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    write(tmp_path / "runs" / "one", age_s=60.0, status="finished")
    terminal = Terminal(tmp_path / "runs")
    wait_for("the first drawing", lambda: terminal.has("\x1b[?1049h") and terminal.has("one  finished"), 30.0)
    yield terminal
    terminal.process.kill()
    terminal.process.wait()
    os.close(terminal.ours)


def test_q_leaves_the_terminal_as_it_was(terminal: Terminal) -> None:
    assert termios.tcgetattr(terminal.ours) != terminal.modes
    os.write(terminal.ours, b"q")
    assert terminal.end() == 0
    assert terminal.shown.endswith("\x1b[?7h\x1b[?25h\x1b[?1049l")
    assert termios.tcgetattr(terminal.ours) == terminal.modes


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGINT, 0)])
def test_a_signal_leaves_the_terminal_as_it_was(terminal: Terminal, number: int, code: int) -> None:
    terminal.process.send_signal(number)
    assert terminal.end() == code
    assert terminal.shown.endswith("\x1b[?1049l")
    assert termios.tcgetattr(terminal.ours) == terminal.modes


def test_a_new_size_and_a_new_run_are_drawn(terminal: Terminal, tmp_path: Path) -> None:
    terminal.resize(34, 10)
    write(tmp_path / "runs" / "two", age_s=0.0, status="stopped")
    wait_for("the new run", lambda: terminal.has("two  stopped"), 30.0)
    frame = terminal.shown.rpartition("\x1b[H")[2]
    lines = re.sub(r"\x1b\[\d*[mK]", "", frame).replace("\r", "").split("\n")
    assert len(lines) == 10
    assert max(map(len, lines)) <= 34
