"""Data-parallel training: the baseline that a second device must beat, in real processes."""

import os
import signal
from pathlib import Path

import pytest
from support.runs import (
    HANG_S,
    events_of,
    has_steps,
    sbpipe,
    settings,
    small,
    start,
    summary_of,
    train_data_parallel,
    train_inline,
    wait_for,
)

from sbpipe.config import resolve
from sbpipe.errors import ConfigError
from sbpipe.machine.place import Place

FULL = {"mode": "data-parallel", "selection__policy": "full"}


def test_replicas_have_equal_cores_side_by_side() -> None:
    places = [Place(rank, 2, Path("meeting")) for rank in range(2)]
    assert [place.cores([0, 1, 2, 3], 0) for place in places] == [[0, 1], [2, 3]]
    assert [place.cores([0, 1, 2, 3], 1) for place in places] == [[0], [2]]
    assert [place.cores([5], 0) for place in places] == [[5], [5]]


def test_data_parallel_has_no_selector() -> None:
    with pytest.raises(ConfigError, match=r"selection.policy = 'sb'.*no selector"):
        small(mode="data-parallel", selection__policy="sb")


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train.batch_size = 16.*train.replicas = 3"):
        resolve(
            {"mode": "data-parallel", "selection.policy": "full", "train.batch_size": 16, "train.replicas": 3}
        )


def test_a_trainer_alone_is_no_data_parallel_run(run_path: Path) -> None:
    done = sbpipe("trainer", "--run-dir", str(run_path), *settings(**FULL))
    assert done.returncode == 2
    assert "sbpipe run" in done.stderr


def test_one_replica_is_training_in_one_process_bit_for_bit(run_path: Path, tmp_path: Path) -> None:
    done = sbpipe("run", "--run-dir", str(run_path), *settings(**FULL, train__replicas=1, train__threads=1))
    assert done.returncode == 0, done.stderr
    alone = train_inline(small(mode="inline", selection__policy="full"), tmp_path / "inline")
    assert summary_of(run_path)["weights.digest"] == alone["weights.digest"]


def test_two_replicas_take_the_steps_of_one_and_see_every_example_once(run_path: Path) -> None:
    done = sbpipe("run", "--run-dir", str(run_path), *settings(**FULL, train__epochs=1.0, train__steps=0))
    assert done.returncode == 0, done.stderr
    summary = summary_of(run_path)
    assert (summary["steps"], summary["devices"], summary["trained"]) == (600 // 16, 2, 600 // 16 * 16)
    assert sum(sum(event["class_counts"]) for event in events_of(run_path, "step")) == summary["trained"]


def test_a_budget_of_seconds_ends_all_replicas(run_path: Path) -> None:
    done = sbpipe("run", "--run-dir", str(run_path), *settings(**FULL, train__steps=0, train__seconds=2.0))
    assert done.returncode == 0, done.stderr
    assert summary_of(run_path)["train_s"] >= 2.0


def test_a_killed_replica_ends_the_run_and_a_resume_comes_to_the_same_weights(
    run_path: Path, tmp_path: Path
) -> None:
    same = {**FULL, "train__steps": 200, "checkpoint__every": 5}
    process = start("run", "--run-dir", str(run_path), "--max-restarts", "0", *settings(**same))
    wait_for("12 steps", has_steps(run_path, 12))
    os.kill(_replica_of(process.pid), signal.SIGKILL)
    said, _ = process.communicate(timeout=HANG_S)
    assert process.returncode != 0
    assert "replica" in said
    assert sbpipe("run", "--run-dir", str(run_path), "--resume").returncode == 0
    whole = train_data_parallel(small(**same), tmp_path / "whole")
    assert events_of(run_path, "resumed")
    assert summary_of(run_path)["weights.digest"] == whole["weights.digest"]


def test_an_interrupt_ends_all_replicas_at_a_step_and_leaves_a_checkpoint(run_path: Path) -> None:
    process = start("run", "--run-dir", str(run_path), *settings(**FULL, train__steps=4000))
    wait_for("5 steps", has_steps(run_path, 5))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert summary_of(run_path)["status"] == "stopped"
    assert list((run_path / "checkpoints").glob("step-*.pt"))


def _replica_of(supervisor: int) -> int:
    """The process id of the second replica."""
    for task in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        if b"SBPIPE_REPLICA=1:" in Path(f"/proc/{task}/environ").read_bytes():
            return int(task)
    raise AssertionError("no second replica")
