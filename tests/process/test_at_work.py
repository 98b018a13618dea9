"""A run that is at work, looked at from outside: where it computes, where it listens, who may disturb it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import control_of, pid_of
from support.runs import HANG_S, SlowMotion, events_of, has_steps, sbpipe, settings, start, wait_for

from sbpipe.machine import cores


@pytest.fixture(scope="module")
def at_work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that goes on for as long as tests look at it, and does not compute much meanwhile."""
    folder = tmp_path_factory.mktemp("at work")
    path, slow = folder / "run", SlowMotion(folder)
    given = settings(link__bind=f"ipc://{folder}/link", train__steps=100_000, loss__name=slow.loss)
    run = start("run", "--run-dir", str(path), *given, env=slow.env)
    try:
        wait_for("steps", has_steps(path, 3))
        yield path
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=HANG_S)
        assert run.returncode == 130, output
        assert not (path / "connection.json").exists()
    finally:
        run.kill()
        run.wait()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_on_the_cores_that_train_only_the_loop_runs(at_work: Path) -> None:
    trainer = pid_of(at_work, "trainer")
    own = cores.share("trainer", 0)
    loop, others = os.sched_getaffinity(trainer), list[set[int]]()
    for thread in os.listdir(f"/proc/{trainer}/task"):
        if int(thread) != trainer:
            others.append(os.sched_getaffinity(int(thread)))
    assert loop == set(own)
    # Messages, loading, checkpoints and the sockets' own two: none of them where a step computes.
    assert sum(not each & set(own) for each in others) >= 5


def test_a_run_listens_where_it_is_told_and_nobody_else_can_look_into_it(at_work: Path) -> None:
    assert control_of(at_work) == f"ipc://{at_work.parent}/link"
    assert at_work.stat().st_mode & 0o777 == 0o700


def test_a_live_run_is_not_disturbed_by_a_second_one(at_work: Path) -> None:
    before = len(events_of(at_work, "step"))
    second = sbpipe("run", "--run-dir", str(at_work), "--overwrite", *settings())
    assert second.returncode == 2
    assert "another trainer is working" in second.stderr
    assert (at_work / "connection.json").exists()
    wait_for("more steps", has_steps(at_work, before + 3))
