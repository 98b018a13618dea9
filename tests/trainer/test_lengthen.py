"""A run is resumed with a longer budget, and with nothing else that decides what is trained."""

from pathlib import Path
from typing import Any

import pytest
from support.runs import events_of, settings, small, summary_of, train_inline
from support.runs import sbpipe as command

from sbpipe.config import flatten, resolve, to_dict
from sbpipe.errors import ConfigError, RunDirError
from sbpipe.runs.directory import RunDir, resumed
from sbpipe.trainer import checkpoint_file

CONSTANT = {"mode": "inline", "schedule__name": "constant"}
EPOCHS = {**CONSTANT, "train__steps": 0}


def lengthened(path: Path, **given: Any) -> dict[str, Any]:
    config = resumed(path, {key.replace("__", "."): value for key, value in given.items()})
    return train_inline(config, path, resume=True)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({**CONSTANT, "train__steps": 7}, {"train__steps": 12}),
        ({**EPOCHS, "train__epochs": 1.0}, {"train__epochs": 2.0}),
    ],
    ids=["steps", "epochs"],
)
def test_a_lengthened_run_ends_as_one_that_was_as_long_from_the_start(
    tmp_path: Path, short: dict[str, Any], long: dict[str, Any]
) -> None:
    # At a constant rate a budget changes nothing but the end.
    train_inline(small(**short), tmp_path / "short")
    whole = train_inline(small(**short | long), tmp_path / "long")
    ended = lengthened(tmp_path / "short", **long)
    assert (ended["steps"], ended["status"]) == (whole["steps"], "finished")
    assert ended["weights.digest"] == whole["weights.digest"]
    assert ended["config.digest"] == whole["config.digest"]


def test_the_schedule_is_that_of_the_new_total_and_the_run_says_so(run_path: Path) -> None:
    train_inline(small(mode="inline", train__steps=6), run_path)
    lengthened(run_path, train__steps=12)
    rates = [event["rate"] for event in events_of(run_path, "step")]
    assert rates[6] > rates[5]
    (note,) = events_of(run_path, "note")
    assert "lengthened: train.steps = 12 instead of 6" in note["text"]


def test_a_run_by_time_is_lengthened_by_time(run_path: Path) -> None:
    config = small(mode="inline", train__steps=0, train__seconds=0.3)
    first = train_inline(config, run_path)
    second = lengthened(run_path, train__seconds=1.0)
    assert second["steps"] > first["steps"]
    assert second["train_s"] > 0.9


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {},
            r"is finished: there is nothing to resume\. Lengthen it with --set train\.steps=N, more than 12",
        ),
        ({"train.steps": 12}, "is finished"),
        ({"train.steps": 8}, r"train\.steps = 8: .*started with 12\. A run can be made longer, not shorter"),
        ({"train.epochs": 99.0}, r"measured by train\.steps\. Set train\.steps to more than 12"),
        ({"train.seconds": 99.0}, r"measured by train\.steps"),
        ({"train.steps": 24, "optim.lr": 0.5}, r"optim\.lr = 0\.5: .*started with 0\.1\. Leave it out"),
    ],
)
def test_all_but_a_longer_budget_is_refused(finished: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, RunDirError), match=message):
        resumed(finished, given)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lengthen") / "run"
    train_inline(small(mode="inline"), path)
    return path


def test_the_command_lengthens_a_pipelined_run(run_path: Path) -> None:
    assert command("run", "--run-dir", str(run_path), *settings(train__steps=4)).returncode == 0
    done = command("run", "--resume", str(run_path), "--set", "train.steps=8")
    assert done.returncode == 0, done.stderr
    assert "lengthened: train.steps = 8 instead of 4" in done.stdout
    assert (summary_of(run_path)["steps"], summary_of(run_path)["status"]) == (8, "finished")
    twice = command("run", "--resume", str(run_path), "--run-dir", "elsewhere")
    assert "Name one run" in twice.stderr


def test_a_run_that_cannot_be_lengthened_stays_finished(run_path: Path) -> None:
    train_inline(small(mode="inline", train__steps=4), run_path)
    path = run_path / "checkpoints" / "step-4.pt"
    state = checkpoint_file.read(path)
    # As a version wrote it that did not know of this.
    for name in ("lineage", "budget", "step", "format"):
        del state[name]
    checkpoint_file.write(path, 4, checkpoint_file.frozen(state), lambda: None)
    with pytest.raises(RunDirError, match="written under other settings"):
        lengthened(run_path, train__steps=8)
    assert (summary_of(run_path)["status"], resumed(run_path, {"train.steps": 6}).train.steps) == (
        "finished",
        6,
    )


def test_a_lengthened_run_that_is_killed_is_resumed_to_its_new_end(run_path: Path) -> None:
    config = small(mode="inline", train__steps=6)
    train_inline(config, run_path)
    summary_before = summary_of(run_path)
    longer = resolve({**flatten(to_dict(config)), "train.steps": 12})
    opened = RunDir.open(run_path, resume=True, overwrite=False)
    opened.lengthen(longer)  # and then nothing more: killed
    opened.close()
    assert summary_before["status"] == "finished"
    assert lengthened(run_path)["steps"] == 12
