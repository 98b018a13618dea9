"""Whatever a user needs of a run is there, or exit code and words say what is missing."""

import contextlib
import json
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.runs import events_of, small, summary_of, train_inline

from sbpipe.config import Config
from sbpipe.errors import ResultsElsewhere, ResultsLost, RunDirError
from sbpipe.process import roles
from sbpipe.runs.checkpoints import steps_in
from sbpipe.runs.directory import RunDir
from sbpipe.trainer import checkpoint, checkpoint_file
from sbpipe.trainer.run import TrainerRun

Trouble = Callable[[str], None]


def train(
    config: Config, path: Path, trouble: Trouble = lambda what: None, *, resume: bool = False
) -> dict[str, Any]:
    """A run during which `trouble` happens: it is called again and again with what the run does."""
    return roles.run_inline(
        config, path, resume=resume, overwrite=False, on_open=lambda run_dir: None, doing=trouble
    )


def once(act: Callable[[], object], when: str = "training", after: int = 0) -> Trouble:
    """Something that happens once, when a run does something; `after` so many times that nothing happens."""
    left: list[Callable[[], object]] = [act, *[lambda: None] * after]

    def trouble(what: str) -> None:
        if left and what == when:
            left.pop()()

    return trouble


def block(path: Path) -> Trouble:
    """A file stands where the checkpoints should go: that stops root too."""
    return once(lambda: (path / "checkpoints").write_text("in the way"))


def spare_of(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def test_final_weights_that_the_run_directory_does_not_take_go_to_the_spare_folder(tmp_path: Path) -> None:
    run, spare = tmp_path / "run", tmp_path / "new" / "spare"
    config = small(mode="inline", checkpoint__spare=str(spare))
    with pytest.raises(ResultsElsewhere, match="did not take the checkpoint of step 12") as caught:
        train(config, run, block(run))
    folder = spare_of(spare)
    assert str(folder) in str(caught.value)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert checkpoint_file.read(folder / "checkpoints" / "step-12.pt")["step"] == 12
    assert summary_of(run) == summary_of(folder)
    assert summary_of(run)["checkpoint.spare"] == str(folder)
    assert str(folder) in summary_of(run)["verdict.lost"]


def test_a_stopped_run_goes_on_from_the_spare_folder(tmp_path: Path) -> None:
    run, spare = tmp_path / "run", tmp_path / "spare"
    config = small(mode="inline", checkpoint__spare=str(spare), train__steps=40)
    whole = train_inline(config, tmp_path / "whole")

    def stop_without_room() -> None:
        (run / "checkpoints").write_text("in the way")
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(ResultsElsewhere, match="--resume"):
        train(config, run, once(stop_without_room, after=5))
    again = train(config, spare_of(spare), resume=True)
    assert (again["status"], again["weights.digest"]) == ("finished", whole["weights.digest"])


def test_a_run_directory_that_vanished_costs_its_record_and_nothing_else(tmp_path: Path) -> None:
    run, spare = tmp_path / "run", tmp_path / "spare"
    config = small(mode="inline", checkpoint__spare=str(spare), checkpoint__every=5)
    with pytest.raises(ResultsElsewhere, match="events of the run are gone"):
        train(config, run, once(lambda: shutil.rmtree(run), when="writing a checkpoint"))
    assert steps_in(spare_of(spare) / "checkpoints") == [12]
    assert summary_of(spare_of(spare))["steps"] == 12
    assert not run.exists()


def test_a_summary_that_cannot_be_written_goes_to_the_spare_folder(tmp_path: Path) -> None:
    run, spare = tmp_path / "run", tmp_path / "spare"
    config = small(mode="inline", checkpoint__spare=str(spare))
    with pytest.raises(ResultsElsewhere, match=r"did not take summary\.json"):
        train(config, run, once(lambda: (run / "summary.json").mkdir()))
    assert summary_of(spare_of(spare))["steps"] == 12
    assert steps_in(run / "checkpoints") == [12]


def test_what_can_be_written_nowhere_is_told_and_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, nowhere = tmp_path / "run", tmp_path / "file"
    nowhere.write_text("not a folder")
    monkeypatch.setattr(tempfile, "tempdir", str(nowhere))
    config = small(mode="inline", checkpoint__spare=str(nowhere / "spare"), checkpoint__every=5)
    whole = train_inline(config, tmp_path / "whole")

    def fill_up() -> None:
        (run / "checkpoints" / "step-12.pt").mkdir()

    with pytest.raises(
        ResultsLost, match=r"lost: the checkpoint of step 12 .* last one there is of step 10"
    ) as caught:
        train(config, run, once_at(run, 10, fill_up))
    assert caught.value.summary["steps"] == 12
    assert summary_of(run)["status"] == "failed"
    (run / "checkpoints" / "step-12.pt").rmdir()
    again = train(config, run, resume=True)
    assert (again["status"], again["weights.digest"]) == ("finished", whole["weights.digest"])


def once_at(run: Path, step: int, act: Callable[[], object]) -> Trouble:
    """Something that happens once a checkpoint of this step is there."""
    left = [act]

    def trouble(what: str) -> None:
        if left and step in steps_in(run / "checkpoints"):
            left.pop()()

    return trouble


def test_exit_codes_tell_moved_from_lost() -> None:
    assert (ResultsElsewhere.exit_code, ResultsLost.exit_code) == (4, 5)


def test_a_failed_checkpoint_is_tried_again_before_the_next_regular_one(
    run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_FIRST_RETRY_S", 0.0)
    config = small(mode="inline", train__steps=40, checkpoint__every=10, checkpoint__keep=9)
    calls = []

    def trouble(what: str) -> None:
        calls.append(what)
        if len(calls) == 1:
            (run_path / "checkpoints").write_text("in the way")
        elif sum("not written" in event["text"] for event in events_of(run_path, "warning")) >= 2:
            # A folder by now, if it was tried again meanwhile.
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                (run_path / "checkpoints").unlink()

    train(config, run_path, trouble)
    steps = steps_in(run_path / "checkpoints")
    assert steps[-3:] == [20, 30, 40]
    assert 10 < steps[0] < 20
    texts = [event["text"] for event in events_of(run_path, "warning")]
    assert sum("not written (Not a directory); training goes on" in text for text in texts) >= 2
    assert "checkpoints work again" in texts[-1]


def test_lost_events_are_holes_in_the_record(run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_with_holes(self: TrainerRun, **given: Any) -> dict[str, Any]:
        self._events.num_lost = 7
        return run(self, **given)

    run = TrainerRun.run
    monkeypatch.setattr(TrainerRun, "run", run_with_holes)
    summary = train_inline(small(mode="inline"), run_path)
    assert "The record has holes" in summary["verdict.lost"]


# --- stopping -------------------------------------------------------------------------------------


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_stop_during_an_evaluation_leaves_a_checkpoint_and_the_evaluation_is_made_up_for(
    tmp_path: Path,
) -> None:
    config = small(mode="inline", train__steps=40, eval__every=0.5, eval__batch_size=10)
    whole = train_inline(config, tmp_path / "whole")
    stopped = train(config, tmp_path / "run", once(stop, when="measuring the test error"))
    assert stopped["status"] == "stopped"
    assert events_of(tmp_path / "run", "eval") == []
    assert steps_in(tmp_path / "run" / "checkpoints") == [stopped["steps"]]
    again = train(config, tmp_path / "run", resume=True)
    assert again["weights.digest"] == whole["weights.digest"]
    evaluated = [len(events_of(tmp_path / name, "eval")) for name in ("run", "whole")]
    assert evaluated[0] == evaluated[1]


def test_a_run_stopped_during_its_last_evaluation_is_resumed_to_measure_it(run_path: Path) -> None:
    config = small(mode="inline", eval__batch_size=10)
    stopped = train(config, run_path, once(stop, when="measuring the test error"))
    assert (stopped["status"], stopped["steps"]) == ("stopped", 12)
    again = train(config, run_path, resume=True)
    assert (again["status"], again["steps"]) == ("finished", 12)
    assert again["weights.digest"] == stopped["weights.digest"]
    assert again["eval.error"] is not None


def test_a_budget_of_time_is_not_exceeded_by_a_resume_after_its_end(run_path: Path) -> None:
    config = small(mode="inline", train__steps=0, train__seconds=0.2)
    stopped = train(config, run_path, once(stop, when="measuring the test error"))
    again = train(config, run_path, resume=True)
    assert (again["status"], again["steps"]) == ("finished", stopped["steps"])


def test_a_second_sigterm_does_not_cut_the_checkpoint_short(run_path: Path) -> None:
    def stop_twice() -> None:
        stop()
        stop()

    summary = train(small(mode="inline", train__steps=1000), run_path, once(stop_twice, after=5))
    assert summary["status"] == "stopped"
    assert steps_in(run_path / "checkpoints") == [summary["steps"]]


def test_a_kill_while_an_old_run_is_overwritten_can_be_overwritten_again(
    run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_inline(small(mode="inline", train__steps=2), run_path)
    removed = []

    def dies(path: Path, **given: Any) -> None:
        removed.append(path.name)
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", dies)
    with pytest.raises(KeyboardInterrupt):
        roles.run_inline(
            small(mode="inline"), run_path, resume=False, overwrite=True, on_open=lambda run_dir: None
        )
    assert removed
    assert json.loads((run_path / "config.json").read_text())


def test_a_forked_loader_does_not_hold_the_lock_of_a_trainer_that_is_gone(run_path: Path) -> None:
    (mine, theirs), (is_up, goes_up) = os.pipe(), os.pipe()
    first = RunDir.open(run_path, resume=False, overwrite=False)
    child = os.fork()
    if child == 0:
        os.close(theirs)
        os.write(goes_up, b"!")
        os.read(mine, 1)  # until the parent closes its end
        os._exit(0)
    os.read(is_up, 1)
    first.close()
    try:
        RunDir.open(run_path, resume=False, overwrite=False).close()
    finally:
        os.close(theirs)
        os.waitpid(child, 0)
        for handle in (mine, is_up, goes_up):
            os.close(handle)


def test_a_run_directory_without_room_for_its_first_files_is_a_users_error(
    run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_path.mkdir()
    (run_path / "logs").mkdir()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sbpipe.runs.directory.RunDir.write_environment", full)
    with pytest.raises(RunDirError, match="No space left"):
        train_inline(small(mode="inline"), run_path)
