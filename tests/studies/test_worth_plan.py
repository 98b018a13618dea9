"""`sbpipe worth`: which runs it makes, that random's are shared, and its tables, picture and files."""

import json
from pathlib import Path
from typing import Any

import pytest

from sbpipe.config import Config, resolve
from sbpipe.errors import ConfigError
from sbpipe.runs import read_study
from sbpipe.runs.curve import Point
from sbpipe.show.charts import to_svg
from sbpipe.show.report.many import charts_of_many, tables_of_many
from sbpipe.studies.conclusion import page_of
from sbpipe.studies.folder import State, StudyFolder
from sbpipe.studies.outcome import Outcome, analyse
from sbpipe.studies.plan import Plan, PlannedCell
from sbpipe.studies.result import Result
from sbpipe.studies.results_file import write_results
from sbpipe.studies.worth_plan import budgets_flag, plan_worth

READY_MADE = sorted((Path(__file__).parents[2] / "configs" / "worth").glob("*.toml"))
RUN = 'mode = "fixed-lag"\n[train]\nsteps = 100\nbatch_size = 16\n[selection]\npolicy = "sb"\nkeep = 0.25\n'
STUDY = """
seeds = 2
budgets = [0.5, 1, 2]
[base]
train.batch_size = 16
mode = "inline"
[[tasks]]
name = "big"
train.steps = 100
[[tasks]]
name = "small"
train.steps = 10
arms = ["rank"]
[[arms]]
name = "sb"
selection.policy = "sb"
[[arms]]
name = "rank"
selection.policy = "rank"
"""


def plan_of(folder: Path, text: str = RUN, **flags: Any) -> Plan:
    path = folder / "job.toml"
    path.write_text(text)
    given: dict[str, Any] = {"settings": {}, "arms": [], "budgets": None, "seeds": [0, 1]}
    return plan_worth(path, **(given | {"count_examples": not_asked} | flags))


def not_asked(config: Config) -> int:
    raise AssertionError("the data is read only where N is given in epochs")


def steps_of(plan: Plan, seed: int = 0) -> dict[str, int]:
    return {cell.label: cell.settings["train.steps"] for cell in plan.cells if cell.seed == seed}


def result_of(cell: PlannedCell) -> Result:
    """Random's error is 10 over its updates; a policy ends where random does after twice as many."""
    is_random = cell.arm.startswith("random")
    steps = cell.settings["train.steps"]
    error = 10 / (steps if is_random else 2 * steps) + 0.001 * cell.seed
    summary = {"mode": "inline", "eval.error": error, "steps": steps, "devices": 1}
    return Result(cell, State("finished", 0.0, process_s=1.0), summary, [Point(1.0, error)], {})


def test_random_runs_at_every_budget_without_scoring_and_the_policy_at_n(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    random = [cell for cell in plan.cells if cell.arm in plan.budgets and cell.seed == 0]
    assert [cell.settings["train.steps"] for cell in random] == [50, 67, 100, 150, 200, 300, 400]
    assert {cell.settings["selection.policy"] for cell in random} == {"random"}
    assert {resolve(cell.settings).mode for cell in random} == {"inline"}
    (policy,) = [cell for cell in plan.cells if cell.arm not in plan.budgets and cell.seed == 0]
    config = resolve(policy.settings)
    assert (config.selection.policy, config.train.steps, config.mode) == ("sb", 100, "fixed-lag")


def test_policies_share_the_runs_of_random_selection(tmp_path: Path) -> None:
    one, three = plan_of(tmp_path), plan_of(tmp_path, arms=["sb", "rank", "steady"])
    assert len(three.cells) - len(one.cells) == 2 * 2  # two policies more, two seeds each


def test_an_arm_of_the_command_line_carries_settings_of_its_own(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, arms=["sb", "steady@mode=fixed-lag,sync.lag=2,schedule.milestones=[0.5,0.9]"])
    cell = next(cell for cell in plan.cells if cell.arm.startswith("steady"))
    config = resolve(cell.settings)
    assert (config.selection.policy, config.sync.lag) == ("steady", 2)
    assert config.schedule.milestones == [0.5, 0.9]
    assert cell.arm == "steady mode=fixed-lag lag=2 milestones=[0.5, 0.9]"
    with pytest.raises(ConfigError, match=r"lag=2.*is not a setting"):
        plan_of(tmp_path, arms=["steady@lag=2"])


def test_a_budget_in_epochs_becomes_the_steps_that_the_policy_makes_of_it(tmp_path: Path) -> None:
    text = RUN.replace("steps = 100", "epochs = 2.0")
    plan = plan_of(tmp_path, text, count_examples=lambda config: 1600, budgets=[1.0, 2.0])
    assert steps_of(plan) == {"random x1 seed 0": 50, "random x2 seed 0": 100, "sb seed 0": 50}


def test_every_task_has_its_own_n_and_random_selection(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, STUDY, seeds=None)
    assert steps_of(plan)["random x2 task big seed 0"] == 200
    assert steps_of(plan)["random x2 task small seed 0"] == 20
    assert "sb task small seed 0" not in steps_of(plan)


@pytest.mark.parametrize(
    ("text", "reason"), [("0.5,2", "leaves out 1"), ("1", "two or more"), ("1,x", "multiples")]
)
def test_wrong_budgets_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        budgets_flag(text)


def test_a_budget_in_seconds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="counted in updates"):
        plan_of(tmp_path, RUN.replace("steps = 100", "seconds = 9.0"))


@pytest.mark.parametrize("text", [RUN, STUDY])
def test_files_tables_and_picture_tell_the_same_worth(tmp_path: Path, text: str) -> None:
    plan = plan_of(tmp_path, text)
    results = [result_of(cell) for cell in plan.cells]
    analysis = analyse(plan, results)
    page = page_of(Outcome(plan, results, analysis))
    assert "sb is worth k 2.00" in page
    folder = StudyFolder(tmp_path / "out", plan)
    write_results(folder.path, plan, results, analysis)
    folder.close()
    stored = json.loads((folder.path / "results.json").read_text())["analysis"]
    part = stored["tasks"]["big"] if plan.tasks else stored
    assert part["worth"]["policies"]["sb"]["worth"] == pytest.approx(2.0, rel=0.02)
    study = read_study(folder.path)
    assert any("worth k" in table.header for table in tables_of_many([], [study]))
    charts = charts_of_many([], [study])
    assert len(charts) == len(plan.tasks or [1])
    assert "k 2.00" in to_svg(charts[0])


def test_a_study_of_which_nothing_has_finished_has_tables_too(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert "not known yet" in page_of(Outcome(plan, [], analyse(plan, [])))


@pytest.mark.parametrize("path", READY_MADE, ids=lambda path: path.stem)
def test_every_ready_made_study_of_worth_can_be_planned(path: Path) -> None:
    plan = plan_worth(path, settings={}, arms=[], budgets=None, seeds=None, count_examples=not_asked)
    assert plan.baseline in plan.arms
