"""Ctrl-C while a process starts: one line, exit code 130, no advice that cannot work, nothing left behind."""

import signal
import subprocess
from pathlib import Path

import pytest
from support.runs import HANG_S, settings, start, wait_for

from sbpipe.interrupts import leave_at_once, raise_again

# So many examples take minutes to draw: the run has not begun when the signal comes, on any machine.
LONG = settings(data__examples=1_000_000)


def imports_torch(process: "subprocess.Popen[str]") -> bool:
    """Whether torch's library is being loaded, or is there."""
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def interrupted(process: "subprocess.Popen[str]") -> str:
    """What a process says from Ctrl-C on; all it says, where it says nothing before."""
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    return said


def test_a_trainer_that_has_not_begun_ends_in_one_line(run_path: Path) -> None:
    process = start("trainer", "--bind", "tcp://127.0.0.1:0", "--run-dir", str(run_path), *LONG)
    wait_for("torch", lambda: imports_torch(process))
    assert interrupted(process) == "sbpipe: stopped before it began\n"
    assert not run_path.exists()


def test_a_selector_that_waits_for_its_trainer_ends_in_one_line(run_path: Path) -> None:
    process = start("selector", "--connect", str(run_path))
    wait_for("torch", lambda: imports_torch(process))
    assert interrupted(process).count("stopped") == 1


def test_a_supervised_run_that_has_not_begun_advises_no_resume(run_path: Path) -> None:
    process = start("run", "--run-dir", str(run_path), *LONG)
    wait_for("a trainer", (run_path / "logs" / "trainer.log").exists)
    said = interrupted(process).strip()
    begun = f"starting; run directory: {run_path}"
    assert said == f"{begun}\n\nstopped before the run began: there is nothing to resume"
    assert not run_path.exists()


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_a_handler_of_others_stays(handler: signal.Handlers) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        leave_at_once()
        raise_again()
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
