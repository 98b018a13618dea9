"""Real processes, real kills: nothing is lost, nothing is trained twice, nothing is left behind."""

import json
import os
import re
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from support.processes import children_of, control_of, pid_of
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
    start,
    summary_of,
    train_inline,
    train_over_the_wire,
    wait_for,
)

from sbpipe.link.keys import make_keys
from sbpipe.link.notices import Notice
from sbpipe.runs import read_run
from sbpipe.show.report.lanes import pairs_of
from sbpipe.weights.leftovers import SHARED_MEMORY, leftovers

LOOPBACK = ("--bind", "tcp://127.0.0.1:0")


def nothing_is_left(path: Path) -> None:
    assert children_of(path) == []
    assert leftovers() == []


def test_lockstep_by_the_command_equals_one_process_too(tmp_path: Path) -> None:
    inline = train_inline(small(mode="inline"), tmp_path / "inline")
    done = sbpipe("run", "--run-dir", str(tmp_path / "wire"), *settings(mode="lockstep"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary_of(tmp_path / "wire")["weights.digest"] == inline["weights.digest"]


def test_lockstep_with_pulled_weights_equals_one_process_too(tmp_path: Path) -> None:
    inline = train_inline(small(mode="inline"), tmp_path / "inline")
    config = small(mode="lockstep", sync__shared_memory=False, link__chunk_mib=0.02)
    wire = train_over_the_wire(config, tmp_path / "wire")
    assert wire["weights.digest"] == inline["weights.digest"]
    assert wire["sync.transfer_ms"] > 0
    assert events_of(tmp_path / "wire", "selector")[0]["pulls_weights"] is True


def test_a_pipelined_run_finishes_leaves_nothing_behind_and_writes_events_as_lines_of_json(
    run_path: Path,
) -> None:
    done = sbpipe("run", "--run-dir", str(run_path), *settings(train__steps=0, train__epochs=2.0))
    assert done.returncode == 0, done.stdout + done.stderr
    summary = summary_of(run_path)
    assert summary["candidates"] == 1200
    assert summary["kept"] == summary["steps"] * 16 + summary["leftover"]
    assert summary["staleness.max"] <= 2 + 1 - 1
    assert str(run_path) in done.stdout
    assert {"trainer.log", "selector-0.log"} == {entry.name for entry in (run_path / "logs").iterdir()}
    nothing_is_left(run_path)
    assert list(run_path.glob("events-selector-*.jsonl"))
    for path in run_path.glob("events-*.jsonl"):
        assert all(json.loads(line)["kind"] for line in path.read_text().splitlines())


def test_two_selectors_train_every_candidate_once(run_path: Path) -> None:
    done = forked(
        "run", "--selectors", "2", "--run-dir", str(run_path), *settings(train__steps=0, train__epochs=2.0)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary_of(run_path)["candidates"] == 1200


def test_a_killed_selector_is_started_again_and_nothing_is_lost(run_path: Path) -> None:
    slow = SlowMotion(run_path.parent)
    given = settings(train__steps=0, train__epochs=6.0, link__lost_after_s=4.0, loss__name=slow.loss)
    run = Forked("run", "--run-dir", str(run_path), *given, env=slow.env)
    wait_for("steps", has_steps(run_path, 5))
    trainer, selector = pid_of(run_path, "trainer"), pid_of(run_path, "selector")
    os.kill(trainer, signal.SIGSTOP)  # else it might have finished before the selector is there again
    os.kill(selector, signal.SIGKILL)
    slow.ends()
    wait_for("another selector", lambda: pid_of(run_path, "selector") != selector)
    os.kill(trainer, signal.SIGCONT)
    output, _ = run.communicate(timeout=HANG_S)
    assert run.returncode == 0, output
    assert "starting it again" in output
    summary = summary_of(run_path)
    assert summary["candidates"] == 6 * 600
    assert summary["kept"] == summary["steps"] * 16 + summary["leftover"]
    nothing_is_left(run_path)


def test_a_frozen_selector_is_given_up_and_rejoins(run_path: Path) -> None:
    run = Forked(
        "run",
        "--run-dir",
        str(run_path),
        *settings(train__steps=100_000, link__lost_after_s=1.0),
    )
    wait_for("steps", has_steps(run_path, 10))
    frozen = pid_of(run_path, "selector")
    os.kill(frozen, signal.SIGSTOP)
    wait_for("loss noticed", lambda: events_of(run_path, "selector")[-1]["state"] == "lost")
    before = len(events_of(run_path, "step"))
    wait_for("steps without a selector", lambda: len(events_of(run_path, "step")) > before + 3)
    os.kill(frozen, signal.SIGCONT)
    wait_for("rejoining", lambda: events_of(run_path, "selector")[-1]["state"] == "ready")
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=HANG_S)
    assert run.returncode == 130, output
    assert summary_of(run_path)["lease.fallback"] > 0


def test_a_frozen_selector_does_not_hold_up_the_loop(run_path: Path) -> None:
    run = Forked("run", "--run-dir", str(run_path), *settings(selection__late="fill", train__steps=100_000))
    wait_for("a selector", lambda: has_steps(run_path, 1)() and events_of(run_path, "selector"))
    frozen = pid_of(run_path, "selector")
    os.kill(frozen, signal.SIGSTOP)
    before = len(events_of(run_path, "step"))
    # Silence counts as loss after 120 s here: these steps are trained while its leases are out.
    wait_for("steps", lambda: len(events_of(run_path, "step")) > before + 50)
    assert [event["state"] for event in events_of(run_path, "selector")] == ["ready"]
    os.kill(frozen, signal.SIGCONT)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=HANG_S)
    assert run.returncode == 130, output
    assert any(event["reason"] == "selector late" for event in events_of(run_path, "fill"))


def test_a_killed_trainer_resumes_to_the_same_weights(tmp_path: Path) -> None:
    slow = SlowMotion(tmp_path)
    given = {"train__steps": 50, "train__batch_size": 8, "loss__name": slow.loss}
    whole = train_inline(small(mode="inline", **given), tmp_path / "whole")
    path = tmp_path / "killed"
    given_up = ("--max-restarts", "0", *settings(mode="lockstep", checkpoint__every=5, **given))
    run = Forked("run", "--run-dir", str(path), *given_up, env=slow.env)
    wait_for("a checkpoint", lambda: list((path / "checkpoints").glob("step-*.pt")))
    os.kill(pid_of(path, "trainer"), signal.SIGKILL)
    output, _ = run.communicate(timeout=HANG_S)
    assert run.returncode == 137, output
    nothing_is_left(path)
    slow.ends()
    done = forked("run", "--run-dir", str(path), "--resume", env=slow.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary_of(path)["weights.digest"] == whole["weights.digest"]


def test_a_lone_selector_survives_the_restart_of_its_trainer(run_path: Path) -> None:
    slow = SlowMotion(run_path.parent)
    patient = ("--set", f"link.orphan_timeout_s={HANG_S}", "--set", f"loss.name={slow.loss}")
    selector = Forked("selector", "--connect", str(run_path), *patient, env=slow.env)
    given = settings(train__steps=50, checkpoint__every=5, link__lost_after_s=2.0, loss__name=slow.loss)
    first = Forked("trainer", *LOOPBACK, "--run-dir", str(run_path), *given, env=slow.env)
    wait_for("a checkpoint", lambda: list((run_path / "checkpoints").glob("step-*.pt")))
    first.kill()
    first.communicate(timeout=HANG_S)
    slow.ends()
    second = forked("trainer", *LOOPBACK, "--run-dir", str(run_path), "--resume", env=slow.env)
    assert second.returncode == 0, second.stdout + second.stderr
    output, _ = selector.communicate(timeout=HANG_S)
    assert selector.returncode == 0, output
    assert summary_of(run_path)["steps"] == 50
    assert events_of(run_path, "resumed")


def test_an_interrupt_stops_both_roles_cleanly_and_the_run_can_go_on(run_path: Path) -> None:
    slow = SlowMotion(run_path.parent)
    given = settings(train__steps=0, train__epochs=6.0, loss__name=slow.loss)
    run = Forked("run", "--run-dir", str(run_path), *given, env=slow.env)
    wait_for("steps", has_steps(run_path, 5))
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=HANG_S)
    assert run.returncode == 130, output
    assert summary_of(run_path)["status"] == "stopped"
    nothing_is_left(run_path)
    slow.ends()
    done = forked("run", "--run-dir", str(run_path), "--resume", env=slow.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary_of(run_path)["candidates"] == 6 * 600


def test_a_killed_supervisor_takes_its_children_along(run_path: Path) -> None:
    run = Forked("run", "--run-dir", str(run_path), *settings(train__steps=0, train__epochs=300.0))
    wait_for("steps", has_steps(run_path, 3))
    run.kill()
    run.communicate(timeout=HANG_S)
    wait_for("the end of the children", lambda: not children_of(run_path))
    assert not [path for path in SHARED_MEMORY.glob("sbpipe-*") if path in leftovers()]


def test_a_selector_may_start_before_its_trainer_and_keys_let_it_in(tmp_path: Path) -> None:
    run_path, keys = tmp_path / "run", tmp_path / "keys"
    assert sbpipe("keys", str(keys)).returncode == 0
    selector = Forked("selector", "--connect", str(run_path), "--keys", str(keys))
    trainer = forked("trainer", *LOOPBACK, "--keys", str(keys), "--run-dir", str(run_path), *settings())
    assert trainer.returncode == 0, trainer.stdout + trainer.stderr
    output, _ = selector.communicate(timeout=HANG_S)
    assert selector.returncode == 0, output
    assert "done: finished" in output


def test_two_terminals_need_no_address(tmp_path: Path) -> None:
    selector = Forked("selector", cwd=tmp_path)
    trainer = forked("trainer", *settings(), cwd=tmp_path)
    assert trainer.returncode == 0, trainer.stdout + trainer.stderr
    output, _ = selector.communicate(timeout=HANG_S)
    assert selector.returncode == 0, output
    assert "a trainer of this user on this host" in output


def test_a_selector_that_could_mean_two_trainers_names_them(tmp_path: Path) -> None:
    runs = [tmp_path / "one", tmp_path / "two"]
    notices = [Notice(run) for run in runs]
    selector = forked("selector")
    for notice in notices:
        notice.remove()
    assert selector.returncode == 2
    assert all(f"--connect {run}" in selector.stderr for run in runs)


def test_a_selector_of_a_finished_run_is_told_at_once(run_path: Path) -> None:
    run_path.mkdir()
    (run_path / "summary.json").write_text('{"status": "finished"}')
    selector = forked("selector", "--connect", str(run_path))
    assert selector.returncode == 3
    assert "is finished: there is nothing to select for" in selector.stderr


def test_a_wrong_key_ends_the_selector_and_both_sides_say_so(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        make_keys(tmp_path / name)
    # Theirs, but with the public key of our trainer: only its own key is wrong.
    wrong, right = (tmp_path / name / "selector.key" for name in ("theirs", "ours"))
    table = json.loads(wrong.read_text()) | {"peer": json.loads(right.read_text())["peer"]}
    wrong.write_text(json.dumps(table))
    run_path = tmp_path / "run"
    bind = ("--bind", "tcp://127.0.0.1:0", "--keys", str(tmp_path / "ours"))
    trainer = Forked("trainer", *bind, "--run-dir", str(run_path), *settings())
    address = wait_for("the trainer", lambda: control_of(run_path))
    selector = forked("selector", "--connect", address, "--keys", str(wrong))
    trainer.terminate()
    output, _ = trainer.communicate(timeout=HANG_S)
    assert selector.returncode == 3
    assert "refused this key" in selector.stderr
    assert output.count("a selector with an unknown key was turned away, from 127.0.0.1") == 1


def write_npz(path: Path, seed: int) -> Path:
    random = np.random.default_rng(seed)
    x, y = random.integers(0, 256, (300, 3, 32, 32), np.uint8), random.integers(0, 10, 300)
    np.savez(path, x_train=x, y_train=y, x_test=x[:50], y_test=y[:50])
    return path


def test_a_selector_with_other_data_is_rejected_with_both_sides(tmp_path: Path) -> None:
    ours, theirs, run_path = (
        write_npz(tmp_path / "a.npz", 0),
        write_npz(tmp_path / "b.npz", 1),
        tmp_path / "run",
    )
    trainer = Forked(
        "trainer", *LOOPBACK, "--run-dir", str(run_path), *settings(data__name="arrays", data__path=str(ours))
    )
    selector = forked("selector", "--connect", str(run_path), "--set", f"data.path={theirs}")
    trainer.terminate()
    trainer.communicate(timeout=HANG_S)
    assert selector.returncode == 3
    assert "data: trainer" in selector.stderr
    assert ", selector" in selector.stderr


def test_a_selector_that_was_given_another_model_is_told_so(run_path: Path) -> None:
    trainer = Forked("trainer", *LOOPBACK, "--run-dir", str(run_path), *settings())
    selector = forked("selector", "--connect", str(run_path), "--set", "model.name=small_resnet")
    trainer.terminate()
    trainer.communicate(timeout=HANG_S)
    assert selector.returncode == 3
    assert (
        "model.name: the trainer has 'small_cnn', this selector was given 'small_resnet'" in selector.stderr
    )


def test_a_second_trainer_in_a_run_directory_is_refused(run_path: Path) -> None:
    trainer = Forked("trainer", *LOOPBACK, "--run-dir", str(run_path), *settings())
    wait_for("the trainer", lambda: (run_path / "connection.json").exists())
    second = forked("trainer", *LOOPBACK, "--run-dir", str(run_path), "--resume")
    trainer.terminate()
    trainer.communicate(timeout=HANG_S)
    assert second.returncode == 2
    assert "another trainer is working" in second.stderr


def test_a_pulling_selector_that_waited_for_its_trainer_gets_its_weights(run_path: Path) -> None:
    run_path.mkdir()
    run_path.chmod(0o700)
    address = f"ipc://{run_path}/link"
    selector = Forked("selector", "--connect", address, "--set", "link.heartbeat_s=0.02")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as listener:
        listener.bind(address)
        assert listener.poll(1000 * HANG_S)
    # It says hello from now on: many queue up while the trainer starts, which will answer every one of them.
    trainer = forked(
        "trainer",
        "--bind",
        address,
        "--run-dir",
        str(run_path / "run"),
        *settings(sync__shared_memory=False),
    )
    assert trainer.returncode == 0, trainer.stdout + trainer.stderr
    output, _ = selector.communicate(timeout=HANG_S)
    assert selector.returncode == 0, output


def test_a_selector_whose_trainer_failed_says_so_by_its_exit_code(run_path: Path) -> None:
    selector = Forked("selector", "--connect", str(run_path))
    trainer = forked(
        "trainer",
        *LOOPBACK,
        "--run-dir",
        str(run_path),
        # A policy without scores: by those the selector might be turned out as sick before the trainer ends.
        *settings(optim__lr=1e30, train__steps=100, selection__policy="random"),
    )
    assert trainer.returncode == 2
    output, _ = selector.communicate(timeout=HANG_S)
    assert selector.returncode == 3
    assert "the trainer failed" in output


def test_a_resumed_run_keeps_the_settings_of_its_selector(run_path: Path) -> None:
    slow = SlowMotion(run_path.parent)
    run = Forked(
        "run",
        "--run-dir",
        str(run_path),
        "--precision",
        "bf16",
        *settings(train__steps=40, loss__name=slow.loss),
        env=slow.env,
    )
    wait_for("steps", has_steps(run_path, 3))
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=HANG_S)
    assert summary_of(run_path)["status"] == "stopped"
    slow.ends()
    done = forked("run", "--run-dir", str(run_path), "--resume", env=slow.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary_of(run_path)["device.selector"].endswith("bf16")


def test_a_full_disk_moves_the_results_and_says_where(tmp_path: Path) -> None:
    disk, spare = tmp_path / "disk", tmp_path / "spare"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        (disk / "filler").write_bytes(bytes(500_000))
        given = settings(train__steps=30, checkpoint__every=5, model__options={})
        done = forked("run", "--run-dir", str(disk / "run"), "--spare", str(spare), *given)
        assert done.returncode == 4, done.stdout + done.stderr
        assert "training goes on" in done.stdout
        assert re.search(r"steps +30 ", done.stdout)
        (folder,) = spare.iterdir()
        assert "did not take the checkpoint of step 30 (No space left on device: it needs" in done.stderr
        assert str(folder) in done.stderr
        assert (folder / "checkpoints" / "step-30.pt").exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_where_nothing_can_be_written_the_exit_code_and_the_words_say_so(run_path: Path) -> None:
    def no_large_files() -> None:
        # Also of the log: the words come through memory.
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = sbpipe("run", "--run-dir", str(run_path), *settings(), preexec_fn=no_large_files)
    assert done.returncode == 5, done.stdout + done.stderr
    assert done.stderr.startswith("sbpipe: lost: the checkpoint of step 12 (")
    assert done.stderr.count("File too large") == 2
    assert re.search(r"steps +12 ", done.stdout)


def doing_of(pid: int) -> str:
    """What a trainer tells its supervisor that it does."""
    bulletin = bulletin_of(pid)
    return said_on(bulletin) if bulletin else ""


def bulletin_of(pid: int) -> Path | None:
    """Where a trainer tells its supervisor what it does."""
    try:
        links = Path(f"/proc/{pid}/fd").iterdir()
        return next((link for link in links if "sbpipe-bulletin" in os.readlink(link)), None)
    except OSError:
        return None  # it has ended


def said_on(bulletin: Path) -> str:
    try:
        return bulletin.read_bytes()[16:64].rstrip(b"\0").decode()
    except OSError:
        return ""  # it has ended


OF_MOMENTS = {"train__steps": 20, "train__batch_size": 8, "eval__every": 0.5, "eval__batch_size": 5}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The summary of a run that nobody kills."""
    return train_inline(small(mode="inline", **OF_MOMENTS), tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.parametrize(
    "moment", ["starting", "writing a checkpoint", "measuring the test error", "writing the summary"]
)
def test_a_trainer_killed_at_any_moment_is_started_again_and_comes_to_the_same_weights(
    tmp_path: Path, moment: str, undisturbed: dict[str, Any]
) -> None:
    path = tmp_path / "killed"
    # A trainer that has torch loaded is hardly ever starting.
    run = (start if moment == "starting" else Forked)(
        "run",
        "--run-dir",
        str(path),
        *settings(mode="lockstep", checkpoint__every=1, link__lost_after_s=2.0, **OF_MOMENTS),
    )
    first = pid_of(path, "trainer")
    bulletin = wait_for("its bulletin", lambda: bulletin_of(first))
    # What comes before any step lasts for seconds; only from there on is it watched so closely.
    if moment != "starting":
        wait_for("its beginning", lambda: said_on(bulletin) != "starting")
    wait_for(moment, lambda: said_on(bulletin) == moment, every_s=0.0005)
    os.kill(first, signal.SIGKILL)
    output, _ = run.communicate(timeout=HANG_S)
    assert run.returncode == 0, output
    assert summary_of(path)["weights.digest"] == undisturbed["weights.digest"]
    # Killed in its last moments, it may have left everything already; at its start there was no run yet.
    is_counted = moment in ("writing a checkpoint", "measuring the test error")
    assert not is_counted or summary_of(path)["restarts.trainer"] == 1
    assert "the trainer ended with code -9; starting it again" in output or moment == "writing the summary"
    assert summary_of(path)["candidates"] == undisturbed["candidates"]
    nothing_is_left(path)


def test_an_interrupt_during_a_long_evaluation_leaves_a_checkpoint_at_once(run_path: Path) -> None:
    given = settings(train__steps=1000, eval__every=0.1, eval__batch_size=1, data__test_examples=20_000)
    run = Forked("run", "--run-dir", str(run_path), *given)
    trainer = pid_of(run_path, "trainer")
    wait_for("an evaluation", lambda: doing_of(trainer) == "measuring the test error")
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=HANG_S)
    assert run.returncode == 130, output
    summary = summary_of(run_path)
    assert summary["status"] == "stopped"
    assert (run_path / "checkpoints" / f"step-{summary['steps']}.pt").exists()
    assert events_of(run_path, "eval") == []


def test_nobody_selects_while_the_test_error_is_measured(run_path: Path) -> None:
    arguments = settings(train__steps=40, eval__every=0.5, data__test_examples=2000)
    assert forked("run", "--run-dir", str(run_path), *arguments).returncode == 0
    run = read_run(run_path)
    events = [
        *run.of("step"),
        *(selection for selections in run.selections.values() for selection in selections),
    ]
    spans = [(stage, start, start + seconds) for event in events for stage, start, seconds in pairs_of(event)]
    measured, scored = ([span[1:] for span in spans if span[0] == stage] for stage in ("evaluate", "score"))
    assert len(measured) > 3
    assert len(scored) > 40
    assert [(a, b) for a in measured for b in scored if a[0] < b[1] and b[0] < a[1]] == []


def test_a_run_that_swings_says_so_in_the_terminal_and_names_the_knob(run_path: Path) -> None:
    changes = {
        "mode": "fixed-lag",
        "sync__lag": 6,
        "selection__policy": "sb",
        "selection__keep": 0.2,
        "optim__lr": 0.2,
        "data__examples": 4000,
    }
    done = forked(
        "run", "--run-dir", str(run_path), *settings(**changes, train__steps=180, train__batch_size=64)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if "the loop swings" in line]
    assert len(said) == 1
    assert "selection.policy = 'steady'" in said[0]
    assert done.stdout.count("selection.ramp = False has no effect") == 1
