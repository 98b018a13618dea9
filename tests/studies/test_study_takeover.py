"""A study that goes on takes over finished cells only if they ran with what the plan means today. Starts no
process.
"""

import json
import re
import shutil
from pathlib import Path

import pytest

from sbpipe.config import flatten, resolve, to_dict, to_json
from sbpipe.errors import RunDirError
from sbpipe.studies.folder import State, StudyFolder
from sbpipe.studies.plan import Plan
from sbpipe.studies.plan_changes import changed_keys
from sbpipe.studies.sweep_plan import plan_sweep


def sweep(*intervals: int) -> Plan:
    return plan_sweep(None, settings={}, grid={"sync.interval": list(intervals)}, modes=None, seeds=None)


def finished_folder(path: Path, plan: Plan, config: str) -> Path:
    """A study whose first cell is finished; its run left this config.json."""
    folder = StudyFolder(path, plan)
    run = folder.run_path(plan.cells[0])
    run.mkdir(parents=True)
    (run / "summary.json").write_text('{"status": "finished"}')
    (run / "config.json").write_text(config)
    folder.write_state(plan.cells[0], State("finished", 1.0))
    folder.close()
    return run


def test_a_finished_cell_that_ran_with_another_default_is_not_mixed_with_others(tmp_path: Path) -> None:
    plan = sweep(1)
    before = to_dict(resolve(plan.cells[0].settings, {"selection.policy": "sb"}))
    run = finished_folder(tmp_path, plan, json.dumps(before))
    written = (tmp_path / "plan.json").read_text()
    with pytest.raises(
        RunDirError,
        match=r'cell pipelined_interval-1_seed-0 .* selection\.policy = "sb", and would run with "spread" .*'
        r"another --out, or delete " + re.escape(str(run)),
    ):
        StudyFolder(tmp_path, sweep(1, 2))
    assert (tmp_path / "plan.json").read_text() == written
    shutil.rmtree(run)
    StudyFolder(tmp_path, plan).close()


def test_a_failed_cell_of_another_default_stands_in_nobodys_way(tmp_path: Path) -> None:
    plan = sweep(1)
    run = finished_folder(
        tmp_path, plan, to_json(resolve(plan.cells[0].settings, {"selection.policy": "sb"}))
    )
    (run / "summary.json").unlink()
    StudyFolder(tmp_path, plan).close()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"train": 3}', "\0"])
def test_settings_that_cannot_be_read_are_not_compared(tmp_path: Path, text: str) -> None:
    plan = sweep(1)
    finished_folder(tmp_path, plan, text)
    StudyFolder(tmp_path, plan).close()


def test_only_settings_that_both_know_and_that_decide_what_is_trained_are_compared() -> None:
    now = resolve({"model.options": {"width": 8}})
    then = flatten(to_dict(now))
    assert changed_keys(then, now) == {}
    del then["selection.guard"]
    local = {
        "link.bind": "tcp://127.0.0.1:9",
        "trackers.project": "x",
        "data.workers": 9,
        "data.path": "elsewhere",
    }
    assert changed_keys({**then, "selection.forgotten": 1, **local}, now) == {}
    assert changed_keys({**then, "model.options": {}, "optim.lr": 3.0}, now) == {
        "model.options": ({}, {"width": 8}), "optim.lr": (3.0, 0.1),
    }  # fmt: skip
