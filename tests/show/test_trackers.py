"""Runs are copied to TensorBoard, W&B and MLflow by a process of its own, once and whole."""

import json
import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support.runs import HANG_S, sbpipe, settings, small, start, wait_for

from sbpipe.errors import MissingExtra
from sbpipe.runs.directory import RunDir
from sbpipe.show.trackers import check_installed, switched_on, wait_for_begin, wanted
from sbpipe.show.trackers.copier import GONE_AFTER_S, ending_of
from sbpipe.show.trackers.scalars import scalars_of, without_taken_back

OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}


def event(kind: str, t: float = 0.0, **fields: Any) -> dict[str, Any]:
    return {"t": 1000.0 + t, "clock": t, "role": "trainer", "kind": kind, **fields}


def steps(*numbers: int, loss: float = 0.5) -> list[dict[str, Any]]:
    return [event("step", k, step=k, loss=loss + k, staleness_mean=None) for k in numbers]


def write(path: Path, *events: dict[str, Any], **trackers: Any) -> Path:
    """A run directory with these events, added behind those that are there."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(
        json.dumps({"mode": "inline", "seed": 3, "model": {"options": {}}, "trackers": trackers})
    )
    with (path / "events-trainer.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)
    return path


def finished(num_steps: int) -> list[dict[str, Any]]:
    ending = [
        event("eval", 50, step=num_steps, error=0.25, loss=1.5),
        event("summary", 60, status="finished", steps=num_steps),
    ]
    return [event("start"), *steps(*range(num_steps)), *ending]


def track(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "MLFLOW_"))}
    return sbpipe("track", *arguments, env=clean | environment, stdin=subprocess.DEVNULL)


# --- what is decided ------------------------------------------------------------------------------


def test_events_become_numbers_under_stable_names() -> None:
    step = event(
        "step", step=4, loss=0.5, rate=0.1, spearman=0.9, staleness_mean=None, spans={"forward": [7.0, 0.25]}
    )
    assert scalars_of(step) == {
        "train/loss": 0.5,
        "train/rate": 0.1,
        "train/fidelity": 0.9,
        "time/forward_ms": 250.0,
    }
    assert scalars_of(event("eval", step=4, error=0.25, loss=1.5)) == {"eval/error": 0.25, "eval/loss": 1.5}
    assert scalars_of(event("progress", idle=0.5, queue=3)) == {
        "pipeline/trainer_idle": 0.5,
        "pipeline/queue": 3.0,
    }
    loop = {
        "swing": 1.5,
        "prediction_swing": 1.25,
        "ess": 0.5,
        "strength": 0.75,
        "guard": 1.0,
        "fast_staleness_mean": 2.0,
    }
    assert scalars_of(event("step", step=4, **loop)) == {
        f"train/{name}": value for name, value in loop.items()
    }
    assert scalars_of(event("step", step=4, **dict.fromkeys(loop))) == {}
    assert scalars_of(event("summary", loss=1.0)) == {}


def test_an_event_of_many_steps_gives_their_means() -> None:
    window = event("steps", first=8, step=11, count=4, loss=0.5, stages={"forward": [4, 0.2]})
    assert scalars_of(window) == {"train/loss": 0.5, "time/forward_ms": 50.0}


def test_steps_that_a_resume_repeats_count_once() -> None:
    kept = without_taken_back(
        [*steps(0, 1, 2, 3), event("eval", step=2), event("resumed", step=2), *steps(2, 3, loss=9.0)]
    )
    assert [(e["step"], e["loss"]) for e in kept if e["kind"] == "step"] == [
        (0, 0.5),
        (1, 1.5),
        (2, 11.0),
        (3, 12.0),
    ]
    assert [e["step"] for e in kept if e["kind"] == "eval"] == [2]


@pytest.mark.parametrize(
    ("turn", "is_in_use", "silent_s", "ending"),
    [
        ({"kind": "summary", "status": "stopped"}, False, 0.0, "stopped"),
        ({"kind": "summary", "status": "finished"}, True, 0.0, None),
        ({"kind": "failed"}, False, 0.0, "failed"),
        ({"kind": "resumed"}, False, GONE_AFTER_S, "killed"),
        ({"kind": "start"}, False, 0.0, None),
        ({"kind": "start"}, True, 1000.0, None),
    ],
)
def test_a_run_has_ended_when_it_says_so_or_its_writer_is_gone(
    turn: dict[str, Any], is_in_use: bool, silent_s: float, ending: str | None
) -> None:
    assert ending_of(turn, is_in_use=is_in_use, silent_s=silent_s) == ending


def test_trackers_are_off_until_switched_on() -> None:
    assert wanted(small()) == []
    assert switched_on({"trackers.mlflow": True, "trackers.tensorboard": True, "trackers.wandb": False}) == [
        "tensorboard",
        "mlflow",
    ]


def test_a_missing_library_names_its_extra_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    check_installed(["tensorboard", "wandb"])
    with pytest.raises(MissingExtra, match=r"MLflow runs need mlflow.*sbpipe\[mlflow\]"):
        check_installed(["tensorboard", "mlflow"])


def test_a_folder_left_by_a_library_is_not_that_library(tmp_path: Path) -> None:
    (tmp_path / "wandb").mkdir()
    places = [str(tmp_path), str(Path(__file__).parents[2])]
    code = (
        f"import sys; sys.path[:0] = {places}; from sbpipe.show.trackers import check_installed; "
        "check_installed(['wandb'])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert "pip install 'sbpipe[wandb]'" in done.stderr


# --- TensorBoard ----------------------------------------------------------------------------------


def board(path: Path, tag: str) -> list[tuple[int, float, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(path / "tensorboard"))
    found.Reload()
    return [(scalar.step, scalar.value, scalar.wall_time) for scalar in found.Scalars(tag)]


def test_tensorboard_shows_each_value_at_its_step_and_time(tmp_path: Path) -> None:
    path = write(tmp_path / "run", *finished(3))
    assert track(str(path), "--tensorboard").returncode == 0
    assert board(path, "train/loss") == [(0, 0.5, 1000.0), (1, 1.5, 1001.0), (2, 2.5, 1002.0)]
    assert board(path, "eval/error") == [(3, 0.25, 1050.0)]


def test_tensorboard_shows_the_later_of_repeated_steps(tmp_path: Path) -> None:
    path = write(tmp_path / "run", event("start"), *steps(0, 1, 2), event("summary", status="stopped"))
    track(str(path), "--tensorboard")
    write(path, event("resumed", step=1), *steps(1, 2, 3, loss=9.0), event("summary", status="finished"))
    track(str(path), "--tensorboard")
    assert [(step, value) for step, value, _ in board(path, "train/loss")] == [
        (0, 0.5),
        (1, 10.0),
        (2, 11.0),
        (3, 12.0),
    ]


def test_tensorboard_is_written_without_torch_and_tensorflow(tmp_path: Path) -> None:
    path = write(tmp_path / "run", *finished(2))
    code = (
        "import sys, atexit; from sbpipe.cli import main;"
        "atexit.register(lambda: print({'torch', 'tensorflow'} & set(sys.modules)));"
        f"main(['track', {str(path)!r}, '--tensorboard'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "set()")


def test_a_run_is_followed_to_its_end(tmp_path: Path) -> None:
    trainer = RunDir.open(tmp_path / "run", resume=False, overwrite=False)
    path = write(tmp_path / "run", event("start"), *steps(0, 1), tensorboard=True)
    tracking = start("track", str(path))
    wait_for("the first steps to be copied", lambda: any((path / "tensorboard").glob("events*")))
    write(path, *steps(2, 3), event("summary", status="finished"))
    trainer.close()
    assert f"--logdir {path}/tensorboard" in tracking.communicate(timeout=HANG_S)[0]
    assert tracking.returncode == 0
    assert [step for step, _, _ in board(path, "train/loss")] == [0, 1, 2, 3]


def test_tracking_waits_for_the_new_run_where_an_old_one_was(tmp_path: Path) -> None:
    path = write(tmp_path / "run", *finished(5))
    is_stopped, since = threading.Event(), 2000.0
    waiting = threading.Thread(target=wait_for_begin, args=(path, since, is_stopped), daemon=True)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    write(path, event("resumed", t=since, step=2))
    waiting.join(HANG_S)
    assert not waiting.is_alive()


def test_a_stopped_tracking_keeps_what_it_has(tmp_path: Path) -> None:
    trainer = RunDir.open(tmp_path / "run", resume=False, overwrite=False)
    path = write(tmp_path / "run", event("start"), *steps(0, 1))
    tracking = start("track", str(path), "--tensorboard")
    wait_for("tracking to begin", lambda: any((path / "tensorboard").glob("events*")))
    tracking.send_signal(signal.SIGTERM)
    tracking.communicate(timeout=HANG_S)
    trainer.close()
    assert tracking.returncode == 130
    assert [step for step, _, _ in board(path, "train/loss")] == [0, 1]


# --- W&B ------------------------------------------------------------------------------------------


def wandb_rows(path: Path) -> list[dict[str, Any]]:
    """The history rows of all offline runs: records in blocks of 32 KiB, behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows, whole, last_piece = [], b"", (1, 4)
    for file in sorted(path.glob("wandb/offline-run-*/*.wandb")):
        data, at = file.read_bytes(), 7
        while at + 7 <= len(data):
            if (left := 32768 - at % 32768) < 7:
                at += left
                continue
            _, size, piece = struct.unpack("<IHB", data[at : at + 7])
            whole, at = whole + data[at + 7 : at + 7 + size], at + 7 + size
            if piece in last_piece:
                record, whole = Record.FromString(whole), b""
                if record.HasField("history"):
                    rows.append(
                        {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                    )
    return rows


def test_wandb_gets_each_step_once_with_its_time_also_after_a_resume(tmp_path: Path) -> None:
    path = write(
        tmp_path / "run",
        event("start"),
        *steps(0, 1, 2),
        event("summary", status="stopped", steps=3),
        wandb=True,
    )
    assert track(str(path), **OFFLINE).returncode == 0
    write(
        path,
        event("resumed", step=1),
        *steps(1, 2, 3, loss=9.0),
        event("summary", status="finished", steps=4),
        wandb=True,
    )
    assert track(str(path), **OFFLINE).returncode == 0
    rows = sorted((row["step"], row["train/loss"], row["_timestamp"]) for row in wandb_rows(path))
    assert rows == [(0, 0.5, 1000.0), (1, 1.5, 1001.0), (2, 2.5, 1002.0), (3, 12.0, 1003.0)]
    assert len({file.name for file in path.glob("wandb/offline-run-*/*.wandb")}) == 1  # named by the run's id


def test_wandb_without_a_login_gives_up_in_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "run", *finished(2))
    done = track(str(path), "--wandb", "--tensorboard", HOME=str(tmp_path), WANDB_SILENT="true")
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if "wandb gave up (No API key configured" in line]
    assert "Traceback" not in done.stderr
    assert len(board(path, "train/loss")) == 2


# --- MLflow ---------------------------------------------------------------------------------------


@pytest.fixture
def mlflow_runs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads back the runs of a run directory's own store."""
    for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "true")
    from mlflow.tracking import MlflowClient

    def read(path: Path) -> tuple[Any, list[Any]]:
        client = MlflowClient((path / "mlruns").as_uri())
        experiment = client.get_experiment_by_name("sbpipe")
        return client, client.search_runs([experiment.experiment_id])

    return read


def test_mlflow_gets_settings_values_and_endings_in_one_run(tmp_path: Path, mlflow_runs: Any) -> None:
    path = write(tmp_path / "run", event("start"), *steps(0, 1))
    assert track(str(path), "--mlflow", "--once").returncode == 0
    _, [killed] = mlflow_runs(path)
    write(path, event("resumed", step=1), *steps(1, 2), event("summary", status="finished", steps=3))
    assert track(str(path), "--mlflow").returncode == 0
    client, [run] = mlflow_runs(path)
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(m.step, m.value, m.timestamp) for m in history] == [
        (0, 0.5, 1000000),
        (1, 1.5, 1001000),
        (2, 2.5, 1002000),
    ]
    assert (run.data.params["seed"], run.data.metrics["summary/steps"]) == ("3", 3.0)
    assert (killed.info.status, run.info.status) == ("KILLED", "FINISHED")


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_tracker_that_cannot_write_says_so_once(tmp_path: Path) -> None:
    path = write(tmp_path / "run", *finished(2))
    (path / "tensorboard").write_text("in the way")
    done = track(str(path), "--tensorboard")
    assert done.returncode == 1
    assert done.stderr.count("tensorboard gave up (") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("nowhere", "--wandb"), "nowhere holds no run"), (("run",), "Add --tensorboard, --wandb or --mlflow")],
)
def test_a_mistake_is_said_with_its_way_out(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    write(tmp_path / "run", *finished(1))
    done = sbpipe("track", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_run_with_a_tracker_switched_on_feeds_it(run_path: Path) -> None:
    done = sbpipe("run", "--run-dir", str(run_path), *settings(mode="inline", trackers__tensorboard=True))
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((run_path / "tensorboard").glob("events*")), (run_path / "logs" / "tracker.log").read_text()
