"""Sweeps as processes: killed and gone on with, a cell that fails, a retry, an interrupt."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.runs import HANG_S, forked, has_steps, settings, started, wait_for

from sbpipe.runs import read_study


def status_of(cell: Path) -> str:
    return str(json.loads(cell.read_text())["status"]) if cell.exists() else ""


@pytest.fixture(scope="module")
def killed_and_gone_on(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A sweep of three cells, killed while the second runs, then given again. The second one fails: its model
    cannot be found.
    """
    out = tmp_path_factory.mktemp("study") / "out"
    grid = [
        "--grid",
        "model.name=small_cnn,nowhere:nothing,small_resnet",
        "--set",
        "mode=inline",
        "--set",
        "model.options={}",
    ]
    command = ["sweep", *settings(train__steps=2), *grid, "--out", str(out), "--no-report"]
    first_cell, second_cell = (
        out / "cells" / f"inline_name-{name}_seed-0" for name in ("small_cnn", "nowhere-nothing")
    )
    with started(*command) as first:
        wait_for("the second cell", lambda: status_of(second_cell.with_suffix(".json")))
        first.send_signal(signal.SIGKILL)
    before = (first_cell / "summary.json").stat().st_mtime_ns
    rows = json.loads((out / "results.json").read_text())["rows"]
    with started(*command) as second:
        said, _ = second.communicate(timeout=HANG_S)
    return {
        "first": first_cell,
        "before": before,
        "rows": rows,
        "out": out,
        "command": command,
        "said": said,
        "code": second.returncode,
    }


def test_a_kill_loses_no_finished_cell(killed_and_gone_on: dict[str, Any]) -> None:
    first = killed_and_gone_on["first"]
    assert killed_and_gone_on["rows"][0]["status"] == "finished"
    assert (first / "summary.json").stat().st_mtime_ns == killed_and_gone_on["before"]
    assert json.loads(first.with_suffix(".json").read_text())["attempt"] == 1


def test_a_failed_cell_is_told_in_a_line_and_the_rest_go_on(killed_and_gone_on: dict[str, Any]) -> None:
    study, said = read_study(killed_and_gone_on["out"]), killed_and_gone_on["said"]
    assert [cell.row["status"] for cell in study.cells] == ["finished", "failed", "finished"]
    assert killed_and_gone_on["code"] == 1
    (line,) = [line for line in said.splitlines() if line.startswith("FAILED")]
    assert "nowhere" in line
    assert str(study.cells[1].path) + ".log" in line
    assert "1 of 3 cells failed" in said


def test_an_interrupt_stops_the_running_cell_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    state = out / "cells" / "inline_keep-0.5_seed-0.json"
    grid = ["--grid", "selection.keep=0.5,0.6", "--set", "mode=inline"]
    with started("sweep", *settings(train__steps=10_000), *grid, "--out", str(out)) as process:
        wait_for("a step", has_steps(state.with_name("inline_keep-0.5_seed-0"), 1))
        pid = json.loads(state.read_text())["pid"]
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert f"--out {out}" in said.rpartition("resume with:")[2]
    assert not state.exists()
    with pytest.raises(ProcessLookupError, match="No such process"):
        os.kill(pid, 0)


def test_a_failed_cell_is_tried_again_only_when_asked(killed_and_gone_on: dict[str, Any]) -> None:
    command = killed_and_gone_on["command"]
    state = killed_and_gone_on["out"] / "cells" / "inline_name-nowhere-nothing_seed-0.json"
    before = json.loads(state.read_text())
    left = forked(*command)
    assert (left.returncode, json.loads(state.read_text())) == (1, before)
    assert "--retry runs them again" in left.stdout
    assert forked(*command, "--retry").returncode == 1
    assert json.loads(state.read_text())["attempt"] == before["attempt"] + 1
