"""Cells side by side: which may, on which cores, and what is left of them after a failure, an interrupt, a
kill.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.claims import comparison_text
from support.runs import HANG_S, forked, has_steps, settings, small, started, wait_for

from sbpipe.errors import ConfigError
from sbpipe.runs import read_study
from sbpipe.studies.core_shares import (
    core_shares,
    on_cores,
    other_threads,
    refuse_jobs,
    refuse_other_threads,
    runs_alone,
)

needs_two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="two cells side by side need two cores"
)
BROKEN = {"broken": {"model.name": "nowhere:nothing"}}


def arms_file(folder: Path, *, short: int = 4, long: int = 5, threads: int = 1, second: Any = BROKEN) -> Path:
    """Two tasks of so many steps, for four arms: the second one is given, the last one runs alone."""
    base = {"mode": "inline", "train.threads": threads, "selector.threads": 1}
    rand, piped = {"selection.policy": "random"}, {"mode": "pipelined"}
    tasks = {"short": {"train.steps": short}, "long": {"train.steps": long, "arms": ["sb", "rand"]}}
    path = folder / "arms.toml"
    path.write_text(comparison_text(1, base, {"sb": {}, **second, "rand": rand, "piped": piped}, tasks))
    return path


def command(file: Path) -> list[str]:
    """The tiny comparison, two cells at a time; what a task or an arm sets is left to it."""
    tiny = settings()
    pairs = [
        pair
        for pair in zip(tiny[::2], tiny[1::2], strict=True)
        if not pair[1].startswith(("train.steps=", "model.options="))
    ]
    given = [part for pair in pairs for part in pair]
    return ["compare", str(file), *given, "--jobs", "2", "--out", str(file.parent / "out"), "--no-report"]


def states_in(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        path.stem: json.loads(path.read_text()) for path in sorted((folder / "out" / "cells").glob("*.json"))
    }


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_cores_are_split_into_neighbours_and_none_is_left_out() -> None:
    assert core_shares([3, 0, 1, 2], 2) == [[0, 1], [2, 3]]
    assert core_shares([0, 1, 2, 3, 4], 2) == [[0, 1, 2], [3, 4]]
    assert core_shares([0, 5], 1) == [[0, 5]]


def test_only_runs_whose_result_does_not_depend_on_time_may_share_the_machine() -> None:
    alone = {mode: runs_alone(small(mode=mode)) for mode in ("inline", "lockstep", "fixed-lag", "pipelined")}
    assert alone == {"inline": False, "lockstep": False, "fixed-lag": False, "pipelined": True}
    assert runs_alone(small(mode="data-parallel", selection__policy="full"))
    assert runs_alone(small(mode="inline", train__steps=0, train__seconds=3.0))


def test_a_process_started_on_a_share_stays_there_and_we_do_not() -> None:
    before = os.sched_getaffinity(0)
    with on_cores([max(before)]):
        said = subprocess.run(
            [sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=True,
        )
    assert said.stdout.strip() == str({max(before)})
    assert os.sched_getaffinity(0) == before


def test_more_jobs_than_cores_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"--jobs = 3: there are 2 cores, and each cell needs one of its own. Write at most --jobs 2",
    ):
        refuse_jobs(3, 2)
    with pytest.raises(ConfigError, match="--jobs = 0: is not a number of cells"):
        refuse_jobs(0, 2)
    done = forked("sweep", "--sync", "1", "--jobs", "100000", "--dry-run")
    assert (done.returncode, "--jobs = 100000" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("num_cores", "jobs", "threads", "found"),
    [
        (2, 2, 0, None),
        (2, 2, 1, None),
        (2, 2, 2, ("train.threads", 2, 1)),
        (3, 2, 0, None),
        (4, 1, 0, None),
        (4, 2, 0, ("train.threads", 2, 1)),
        (4, 2, 1, None),
        (4, 2, 2, None),
        (8, 2, 0, ("train.threads", 4, 2)),
        (8, 2, 4, None),
        (8, 3, 3, ("train.threads", 3, 2)),
        (8, 8, 1, None),
    ],
)
def test_a_cell_on_a_share_of_the_cores_must_have_the_threads_it_has_alone(
    num_cores: int, jobs: int, threads: int, found: tuple[str, int, int] | None
) -> None:
    config = small(mode="inline", train__threads=threads)
    assert other_threads(config, jobs, num_cores) == found


def test_the_selectors_threads_count_where_it_is_a_process() -> None:
    assert other_threads(small(mode="inline", train__threads=1), 2, 8) is None
    assert other_threads(small(mode="fixed-lag", train__threads=1), 2, 8) == ("selector.threads", 4, 2)
    assert other_threads(small(mode="fixed-lag", train__threads=1, selector__device="cuda:0"), 2, 8) is None


def test_other_threads_are_refused_with_the_way_out_but_not_where_a_cell_runs_alone() -> None:
    refuse_other_threads([("user", small(mode="pipelined"))], 2, 4)
    with pytest.raises(
        ConfigError,
        match=r"train\.threads = 0: with --jobs 2 on 4 cores cell 'sb seed 0' would compute with 1 thread, "
        r"alone with 2: .*"
        r"--set train\.threads=1 --set selector\.threads=1, or --jobs 1",
    ):
        refuse_other_threads([("user", small(mode="pipelined")), ("sb seed 0", small(mode="inline"))], 2, 4)


@needs_two_cores
def test_the_command_refuses_other_threads_before_anything_starts(tmp_path: Path) -> None:
    num_cores = len(os.sched_getaffinity(0))
    done = forked(*command(arms_file(tmp_path, threads=num_cores)), "--dry-run")
    assert (done.returncode, f"train.threads = {num_cores}: with --jobs 2" in done.stderr) == (2, True)


@needs_two_cores
def test_cells_side_by_side_with_one_that_fails_and_one_that_runs_alone(tmp_path: Path) -> None:
    done = forked(*command(arms_file(tmp_path)))
    assert done.returncode == 1, done.stderr
    states = states_in(tmp_path)
    assert {name for name, state in states.items() if state["status"] == "failed"} == {
        "broken_task-short_seed-0"
    }
    assert len(states) == 6
    alone = states.pop("piped_task-short_seed-0")
    assert alone["beside"] == 0
    assert all(
        state["ended"] <= alone["started"] or alone["ended"] <= state["started"] for state in states.values()
    )
    assert states["sb_task-short_seed-0"]["beside"] == states["broken_task-short_seed-0"]["beside"] == 1
    assert "cells ran beside others" in done.stdout
    page = (tmp_path / "out" / "results.md").read_text()
    assert page.index("final test error in %") < page.index("task short: final test error")
    assert {cell.row["task"] for cell in read_study(tmp_path / "out").cells} == {"short", "long"}


def both_at_work(folder: Path) -> list[int]:
    """Wait until two cells train; their processes."""
    for name in ("sb_task-short_seed-0", "two_task-short_seed-0"):
        wait_for("a step", has_steps(folder / "out" / "cells" / name, 1))
    return [state["pid"] for state in states_in(folder).values()]


@needs_two_cores
def test_an_interrupt_stops_all_running_cells_which_count_as_not_begun(tmp_path: Path) -> None:
    with started(*command(arms_file(tmp_path, short=100_000, second={"two": {}}))) as process:
        pids = both_at_work(tmp_path)
        cores = [os.sched_getaffinity(pid) for pid in pids]
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 130, said
    assert len(pids) == 2
    assert not cores[0] & cores[1]
    assert all(map(is_gone, pids))
    assert states_in(tmp_path) == {}
    assert "--jobs 2" in said.rpartition("resume with:")[2]


@needs_two_cores
def test_a_kill_ends_all_cells_and_the_same_command_goes_on(tmp_path: Path) -> None:
    again = command(arms_file(tmp_path, long=100_000, second={"two": {}}))
    with started(*again) as process:
        wait_for("a step", has_steps(tmp_path / "out" / "cells" / "rand_task-long_seed-0", 1))
        before = states_in(tmp_path)
        process.send_signal(signal.SIGKILL)
    running = [state["pid"] for state in before.values() if state["status"] == "running"]
    wait_for("the end of the cells", lambda: all(map(is_gone, running)))
    done = {name: state for name, state in before.items() if state["status"] == "finished"}
    assert len(done) == 4
    with started(*again) as process:
        wait_for(
            "a second attempt", lambda: [s for s in states_in(tmp_path).values() if s["attempt"] == 2][1:]
        )
        after = states_in(tmp_path)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=HANG_S)
    assert "4 of 6 cells are done already, 2 to run" in said
    assert {name: after[name] for name in done} == done
