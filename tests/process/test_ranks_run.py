"""Ranks as a user starts them: by `sbpipe run`, which has torchrun start them, and by torchrun itself."""

import os
import signal
from pathlib import Path

import pytest
from support.ranked import train_ranks
from support.runs import (
    HANG_S,
    Forked,
    SlowMotion,
    events_of,
    forked,
    has_steps,
    sbpipe,
    settings,
    small,
    summary_of,
    train_inline,
    wait_for,
)

from sbpipe.errors import ConfigError

FULL = {"mode": "data-parallel", "selection__policy": "full"}
pytestmark = pytest.mark.slow


def test_data_parallel_has_no_selector() -> None:
    with pytest.raises(ConfigError, match=r"selection.policy = 'sb'.*no selector"):
        small(mode="data-parallel", selection__policy="sb")


def test_a_trainer_alone_is_not_two_ranks(run_path: Path) -> None:
    done = forked("trainer", "--run-dir", str(run_path), *settings(**FULL))
    assert done.returncode == 2
    assert "train.ranks = 2: this is one process" in done.stderr
    assert "torchrun --nproc-per-node 2 -m sbpipe trainer" in done.stderr


def test_under_torchrun_a_run_has_a_folder_that_restarts_find_again(tmp_path: Path) -> None:
    ranks = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_MAX_RESTARTS": "1"}
    done = forked("trainer", *settings(**FULL), env=ranks, cwd=tmp_path)
    assert done.returncode == 2
    assert "--run-dir = None: is missing" in done.stderr
    done = forked("trainer", "--run-dir", "run", "--overwrite", *settings(**FULL), env=ranks, cwd=tmp_path)
    assert done.returncode == 2
    assert "--overwrite = True" in done.stderr


def test_ranks_of_the_same_launch_go_on_though_their_torchrun_counts_no_restart(run_path: Path) -> None:
    """As after a node has joined: all ranks are started again, and no agent counts that."""
    ranks = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "job 7"}
    command = ["trainer", "--run-dir", str(run_path), *settings(mode="inline", checkpoint__every=5)]
    for _ in range(2):
        done = forked(*command, env=ranks)
        assert done.returncode == 0, done.stderr
    assert "is finished: nothing to do" in done.stderr
    (run_path / "summary.json").unlink()
    done = forked(*command, env=ranks)
    assert done.returncode == 0, done.stderr
    assert len(events_of(run_path, "resumed")) == 1
    done = forked(*command, env=ranks | {"TORCHELASTIC_RUN_ID": "job 8"})
    assert done.returncode == 2
    assert "is not empty" in done.stderr


@pytest.mark.parametrize("launch", ["job 8", "none"])
def test_ranks_that_were_refused_a_folder_are_refused_it_again_after_a_restart(
    launch: str, run_path: Path
) -> None:
    """torchrun starts them again, whatever it was that ended them; the run there is another's still."""
    mine = settings(mode="inline")
    train_inline(small(mode="inline"), run_path)
    before = {path: path.read_bytes() for path in run_path.rglob("*") if path.is_file()}
    ranks = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": launch}
    for attempt in range(3):
        again = {
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            "TORCHELASTIC_MAX_RESTARTS": "3",
            "TORCHELASTIC_ERROR_FILE": f"/tmp/none_x1/attempt_{attempt}/0/error.json",
        }
        done = forked("trainer", "--run-dir", str(run_path), *mine, env=ranks | again)
        assert done.returncode == 2
        assert "is not empty" in done.stderr
    assert {path: path.read_bytes() for path in run_path.rglob("*") if path.is_file()} == before


def test_one_rank_is_training_in_one_process_bit_for_bit(run_path: Path, tmp_path: Path) -> None:
    done = forked("run", "--run-dir", str(run_path), *settings(**FULL, train__ranks=1, train__threads=1))
    assert done.returncode == 0, done.stderr
    alone = train_inline(small(mode="inline", selection__policy="full"), tmp_path / "inline")
    assert summary_of(run_path)["weights.digest"] == alone["weights.digest"]


def test_two_ranks_take_the_steps_of_one_and_see_every_example_once(run_path: Path) -> None:
    done = sbpipe("run", "--run-dir", str(run_path), *settings(**FULL, train__epochs=1.0, train__steps=0))
    assert done.returncode == 0, done.stderr
    summary = summary_of(run_path)
    assert (summary["steps"], summary["devices"], summary["trained"]) == (600 // 16, 2, 600 // 16 * 16)
    assert sum(sum(event["class_counts"]) for event in events_of(run_path, "step")) == summary["trained"]


def test_a_budget_of_seconds_ends_all_ranks(run_path: Path) -> None:
    done = forked("run", "--run-dir", str(run_path), *settings(**FULL, train__steps=0, train__seconds=0.5))
    assert done.returncode == 0, done.stderr
    assert summary_of(run_path)["train_s"] >= 0.5


def test_a_mistake_is_told_once_and_not_tried_again(run_path: Path) -> None:
    wrong = settings(**FULL, loss__name="support.losses:no_such_loss")
    done = forked("run", "--run-dir", str(run_path), *wrong)
    assert done.returncode == 2
    assert "no_such_loss" in done.stderr
    assert "starting it again" not in done.stderr


def test_a_killed_rank_is_started_again_with_all_others_and_they_come_to_the_same_weights(
    run_path: Path, tmp_path: Path
) -> None:
    slow = SlowMotion(tmp_path)
    same = {**FULL, "train__steps": 50, "checkpoint__every": 5, "loss__name": slow.loss}
    process = Forked("run", "--run-dir", str(run_path), *settings(**same), env=slow.env)
    wait_for("7 steps", has_steps(run_path, 7))
    os.kill(_rank_below(process.pid, 1), signal.SIGKILL)
    slow.ends()
    said, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, said
    assert "starting it again from the checkpoint of step" in said
    whole = train_ranks(small(**same), tmp_path / "whole")
    assert events_of(run_path, "resumed")
    assert summary_of(run_path)["weights.digest"] == whole["weights.digest"]


def test_torchrun_restarts_ranks_that_select_and_every_candidate_is_considered_once(run_path: Path) -> None:
    """With a selector beside them: a rank is killed, rank 0, the selector, then all; one rank goes on."""
    same = {"train__steps": 0, "train__epochs": 6.0, "checkpoint__every": 5, "selection__policy": "sb"}
    given = settings(**same, train__shard="full", link__lost_after_s=4.0)
    trainer = ["-m", "sbpipe", "trainer", "--run-dir", str(run_path), *given]
    ranks = _torchrun("2", *trainer)
    selectors = [Forked("selector", "--connect", str(run_path))]
    try:
        wait_for("12 steps", has_steps(run_path, 12))
        os.kill(_rank_below(ranks.pid, 1), signal.SIGKILL)
        wait_for("a restart", lambda: len(events_of(run_path, "resumed")) == 1)
        os.kill(_rank_below(ranks.pid, 0), signal.SIGKILL)
        wait_for("another restart", lambda: len(events_of(run_path, "resumed")) == 2)
        selectors[0].kill()
        selectors.append(Forked("selector", "--connect", str(run_path)))
        wait_for("steps after it", has_steps(run_path, 30))
        for pid in (ranks.pid, *(_rank_below(ranks.pid, rank) for rank in (0, 1))):
            os.kill(pid, signal.SIGKILL)
        ranks.communicate(timeout=HANG_S)
        ranks = _torchrun("1", *trainer, "--resume")
        said, _ = ranks.communicate(timeout=HANG_S)
    finally:
        for process in (ranks, *selectors):
            process.kill()
            process.communicate(timeout=HANG_S)
    assert ranks.returncode == 0, said
    summary = summary_of(run_path)
    assert (summary["status"], summary["candidates"], summary["ranks"]) == ("finished", 3600, 1)


def _torchrun(count: str, *command: str) -> Forked:
    # Without a name, unlike --standalone: such a launch is known by the folder that torchrun makes for it.
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    launcher = [*meeting, "--max-restarts", "3", "--nproc-per-node", count]
    return Forked(*launcher, *command, module="torch.distributed.run")


def test_an_interrupt_ends_all_ranks_at_a_step_and_leaves_a_checkpoint(run_path: Path) -> None:
    process = Forked("run", "--run-dir", str(run_path), *settings(**FULL, train__steps=4000))
    wait_for("5 steps", has_steps(run_path, 5))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert summary_of(run_path)["status"] == "stopped"
    assert list((run_path / "checkpoints").glob("step-*.pt"))


def _rank_below(launcher: int, rank: int) -> int:
    """The process id of a rank that a process started, itself or by torchrun."""
    below = [launcher]
    while below:
        children = Path(f"/proc/{below[0]}/task/{below.pop(0)}/children").read_text().split()
        for child in map(int, children):
            if f"\0RANK={rank}\0".encode() in Path(f"/proc/{child}/environ").read_bytes():
                return child
            below.append(child)
    raise AssertionError(f"no rank {rank}")
