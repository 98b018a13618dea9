"""Comparisons over tasks: who runs for what, in which order, and that no number mixes two tasks."""

import csv
from pathlib import Path
from typing import Any

import pytest
from support.claims import comparison_of
from support.written_studies import write_study

from sbpipe.errors import ConfigError, RunDirError
from sbpipe.runs import read_study
from sbpipe.runs.curve import Point
from sbpipe.runs.study.analysis import verdict
from sbpipe.show.report.many import charts_of_many, tables_of_many
from sbpipe.studies.conclusion import page_of
from sbpipe.studies.folder import State, StudyFolder
from sbpipe.studies.outcome import Outcome, analyse, tables_of
from sbpipe.studies.plan import Plan
from sbpipe.studies.result import Result
from sbpipe.studies.results_file import write_results

TASKS = """
seeds = 3
baseline = "rand"
[base]
mode = "inline"
train.batch_size = 16
optim.lr = 0.3
[[tasks]]
name = "big"
train.steps = 90
selection.keep = 0.25
optim.lr = 0.2
[[tasks]]
name = "small"
train.steps = 10
selection.keep = 0.5
seeds = 2
arms = ["rand", "sb", "full"]
[[arms]]
name = "sb"
selection.policy = "sb"
optim.lr = 0.1
[[arms]]
name = "rand"
selection.policy = "random"
[[arms]]
name = "full"
selection.policy = "full"
steps_factor = "1/keep"
[[arms]]
name = "odd"
tasks = ["big"]
"""
ERRORS = {  # by arm and task, seed by seed
    ("rand", "big"): [0.10, 0.12, 0.14],
    ("sb", "big"): [0.05, 0.08, 0.09],
    ("full", "big"): [0.10, 0.13, 0.13],
    ("rand", "small"): [0.50, 0.60],
    ("sb", "small"): [0.60, 0.71],
    ("full", "small"): [0.20],
}


def plan_of(folder: Path, text: str = TASKS, **flags: Any) -> Plan:
    return comparison_of(folder, text, **flags)


def results_of(plan: Plan) -> list[Result]:
    """Every cell that has an error took ten seconds per point of error; `full` for `small` failed with seed
    1; `odd` never ran.
    """
    results = []
    for cell in plan.cells:
        errors = ERRORS.get((cell.arm, str(cell.task)), [])
        if cell.seed < len(errors):
            error = errors[cell.seed]
            more = {"selection.swing": 1.5} if cell.arm == "sb" else {}
            summary = {"mode": "inline", "eval.error": error, **more}
            results.append(
                Result(cell, State("finished", 0.0, process_s=9.0), summary, [Point(1000 * error, error)], {})
            )
        elif errors:
            results.append(Result(cell, State("failed", 0.0, error="no luck"), {}, [], {}))
    return results


# --- the plan -------------------------------------------------------------------------------------


def test_cells_run_seed_by_seed_then_task_by_task_then_arm_by_arm(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    one_seed = ["sb big", "rand big", "full big", "odd big", "sb small", "rand small", "full small"]
    assert [f"{cell.arm} {cell.task}" for cell in plan.cells] == [*one_seed, *one_seed, *one_seed[:4]]
    assert [cell.seed for cell in plan.cells] == [0] * 7 + [1] * 7 + [2] * 4


def test_a_task_lies_over_the_base_and_under_the_arm(tmp_path: Path) -> None:
    sb, rand, *_ = plan_of(tmp_path).cells
    assert (sb.settings["optim.lr"], rand.settings["optim.lr"]) == (0.1, 0.2)
    assert (rand.settings["train.steps"], rand.settings["train.batch_size"]) == (90, 16)


def test_a_cell_is_named_by_its_task_which_is_no_setting(tmp_path: Path) -> None:
    text = TASKS.replace('name = "sb"', 'name = "sb lag 0"').replace('"sb", "full"]', '"sb lag 0", "full"]')
    cell = plan_of(tmp_path, text).cells[0]
    assert (cell.cell, cell.swept) == ("sb-lag-0_task-big_seed-0", {"task": "big"})
    assert "task" not in cell.settings


def test_an_arm_may_train_a_multiple_of_the_tasks_steps(tmp_path: Path) -> None:
    steps = {
        cell.task: cell.settings["train.steps"] for cell in plan_of(tmp_path).cells if cell.arm == "full"
    }
    assert steps == {"big": 360, "small": 20}
    by_number = plan_of(tmp_path, TASKS.replace('"1/keep"', "1.25"))
    assert [cell.settings["train.steps"] for cell in by_number.cells if cell.arm == "full"][:2] == [112, 12]


def test_the_seeds_of_a_flag_are_shared_out_to_tasks(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, seeds=[7])
    assert {(cell.task, cell.seed) for cell in plan.cells} == {("big", 7), ("small", 7)}
    listed = plan_of(tmp_path, TASKS.replace("seeds = 2", "seeds = [0, 2]"))
    assert [seed for seed in listed.seeds if listed.of_task("small").seeds.count(seed)] == [0, 2]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "small"\n', "", "every task needs a name"),
        ('name = "small"', 'name = "big"', "tasks = 'big': is the name of two tasks"),
        ('arms = ["rand", "sb", "full"]', 'arms = ["rand", "bs"]', "task 'small' arms = 'bs': is not the "
                                                                   "name of an? arm. The arms"),
        ('tasks = ["big"]', 'tasks = ["huge"]', "arm 'odd' tasks = 'huge': is not the name of a task. The "
                                                "tasks are big, small"),
        ('tasks = ["big"]', 'tasks = ["small"]', "arm 'odd' tasks = .*: no task that it names lists it"),
        ('tasks = ["big"]', "tasks = 3", "arm 'odd' tasks = 3: is not a list of names"),
        ("train.steps = 10\n", "", "arm 'full' steps_factor = '1/keep': multiplies train.steps, which is not "
                                   "given.*task 'small'"),
        ('"1/keep"', '"2/keep"', "arm 'full' steps_factor = '2/keep': is not a factor"),
        ('steps_factor = "1/keep"', 'steps_factor = 2\ntrain.steps = 3', "arm 'full' steps_factor = 2.0: the "
                                                                         "arm sets train.steps too"),
        ("seeds = 2", "seeds = 4", "task 'small' seeds = 4: asks for more than the study's seeds, which are "
                                   "0, 1, 2"),
        ("seeds = 2", "seeds = [5]", r"task 'small' seeds = \[5\]: asks for more than"),
        ("seeds = 2", "seeds = 0", "task 'small' seeds = 0: leaves nothing to run"),
        ('arms = ["rand", "sb", "full"]', 'arms = ["sb"]', "task 'small' = .*: the baseline 'rand' does not "
                                                           "run for it"),
        ("selection.keep = 0.5", "seed = 3", "seed = 3: is set in the task 'small'"),
    ],
)  # fmt: skip
def test_a_wrong_task_is_refused_with_the_reason(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert TASKS.count(old) == 1
    with pytest.raises(ConfigError, match=message):
        plan_of(tmp_path, TASKS.replace(old, new))


def test_a_plan_may_grow_by_arms_and_tasks_and_keeps_what_is_done(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    folder = StudyFolder(tmp_path / "out", plan)
    folder.run_path(plan.cells[0]).mkdir(parents=True)
    (folder.run_path(plan.cells[0]) / "summary.json").write_text('{"status": "finished"}')
    folder.write_state(plan.cells[0], State("finished", 1.0))
    folder.close()
    more = '[[tasks]]\nname = "new"\ntrain.steps = 4\n[[arms]]\nname = "late"\n'
    grown = plan_of(tmp_path, TASKS + more)
    folder = StudyFolder(tmp_path / "out", grown)
    assert [cell.cell for cell in grown.cells if folder.state(cell)] == ["sb_task-big_seed-0"]
    folder.close()
    with pytest.raises(RunDirError, match="different plan"):
        StudyFolder(tmp_path / "out", plan)


def test_a_plan_without_tasks_says_nothing_of_them(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "[[arms]]\nname = 'a'\n")
    assert "tasks" not in plan.as_json()
    assert "tasks" in plan_of(tmp_path).as_json()


# --- the analysis ---------------------------------------------------------------------------------


def test_every_task_is_analysed_by_itself(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    parts = analyse(plan, results_of(plan))["tasks"]
    assert {task: part["baseline_error"] for task, part in parts.items()} == pytest.approx(
        {"big": 0.12, "small": 0.55}
    )
    assert [target["error"] for target in parts["big"]["targets"]] == pytest.approx([0.132, 0.144, 0.168])
    assert parts["small"]["arms"]["sb"]["error_difference_mean"] == pytest.approx(0.105)
    assert sum(arm["pareto_share"] for arm in parts["small"]["arms"].values()) == pytest.approx(1.0)
    assert "odd" not in parts["small"]["arms"]


def test_a_mark_says_whether_a_difference_is_beyond_the_spread() -> None:
    assert [verdict(*pair) for pair in ((-0.2, 0.1), (0.1, 0.1), (0.2, 0.1), (0.2, None), (None, 0.1))] == [
        "lower", "within", "higher", None, None,
    ]  # fmt: skip


def test_the_matrix_comes_first_with_arms_as_rows_and_tasks_as_columns(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    matrix, told, *details = tables_of(plan, analyse(plan, results_of(plan)))
    assert matrix.header == ["arm", "big", "small"]
    assert matrix.rows == [
        ["sb", "7.33 ±2.08 (3) ↓", "65.50 ±7.78 (2) ↑"],
        ["rand (baseline)", "12.00 ±2.00 (3)", "55.00 ±7.07 (2)"],
        ["full", "12.00 ±1.73 (3) =", "20.00 (1, 1 failed) ↓"],
        ["odd", "–", ""],
    ]
    assert told.rows == [
        ["big", "sb", "1.500", "–", "–", "–", "–"],
        ["small", "sb", "1.500", "–", "–", "–", "–"],
    ]
    assert [table.title.rpartition("task ")[2] for table in details][:2] == ["big: final test error", "big"]
    assert all(table.is_detail for table in details)


def test_a_row_names_its_task_and_its_own_tasks_targets(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    write_results(tmp_path, plan, results_of(plan), analyse(plan, results_of(plan)))
    rows = {row["cell"]: row for row in csv.DictReader((tmp_path / "results.csv").read_text().splitlines())}
    assert rows["rand_task-big_seed-0"]["task"] == "big"
    assert rows["rand_task-small_seed-0"]["time_to_1.1x_s"] == "500.0"
    assert rows["rand_task-big_seed-2"]["time_to_1.1x_s"] == ""


def test_cells_that_ran_beside_others_are_a_caution_in_facts_and_tables(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    results = results_of(plan)
    results[0] = Result(
        results[0].cell, State("finished", 0.0, beside=1), results[0].summary, results[0].curve, {}
    )
    tables = tables_of(plan, analyse(plan, results))
    finals = next(table for table in tables if table.title.endswith("task big: final test error"))
    assert any(note.startswith("caution: 1 of 12 cells ran beside others") for note in finals.notes)
    page = page_of(Outcome(plan, results, analyse(plan, results)))
    assert "- caution: 1 of 18 cells ran beside others" in page
    assert "n = 3 (seeds 0, 1, 2), 2 for task small" in page


# --- the report -----------------------------------------------------------------------------------


def test_a_report_shows_arms_by_tasks_and_each_task_by_itself(tmp_path: Path) -> None:
    errors = {"big": {"rand": [0.10, 0.12], "sb": [0.05, 0.06]}, "small": {"rand": [0.50, 0.60]}}
    cells = {
        f"{arm}_task-{task}_seed-{seed}": {
            "arm": arm,
            "seed": seed,
            "swept": {"task": task},
            "errors": [0.9, error],
        }
        for task, arms in errors.items()
        for arm, ends in arms.items()
        for seed, error in enumerate(ends)
    }
    path = write_study(tmp_path, "comparison", cells, baseline="rand", targets=[1.1], tasks=["big", "small"])
    study = read_study(path)
    matrix, told, big, *_ = tables_of_many([], [study])
    assert matrix.rows == [
        ["rand (baseline)", "11.00 ±1.41 (2)", "55.00 ±7.07 (2)"],
        ["sb", "5.50 ±0.71 (2) ↓", ""],
    ]
    assert told.rows[0] == ["big", "rand", "–", "–", "–", "0.800", "2.000"]
    assert big.title == "comparison by hand, task big: final test error"
    names = [chart.name for chart in charts_of_many([], [study])]
    assert len(set(names)) == len(names)
