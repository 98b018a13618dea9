"""Sweeps: the plan, the folder, the analysis by hand-written runs, and the results. Starts no process."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpipe.errors import ConfigError, RunDirError, UserError
from sbpipe.runs import read_run
from sbpipe.runs.curve import Point, curve_of, time_to_target
from sbpipe.runs.study.spread import sd_of
from sbpipe.studies.cell_run import last_word
from sbpipe.studies.cells import lay_out, refuse_overruled
from sbpipe.studies.estimate import Running, time_left_s
from sbpipe.studies.folder import State, StudyFolder
from sbpipe.studies.outcome import analyse, tables_of
from sbpipe.studies.plan import Plan, PlannedArm, PlannedCell
from sbpipe.studies.result import Result
from sbpipe.studies.results_file import to_csv, write_results
from sbpipe.studies.study_file import arms_in, grid_flag, grid_in, seeds_flag, seeds_in
from sbpipe.studies.sweep_plan import plan_sweep

SWEEPS = sorted((Path(__file__).parents[2] / "configs" / "sweep").glob("*.toml"))


def sweep(path: Path | None = None, **changes: Any) -> Plan:
    given: dict[str, Any] = {"settings": {}, "grid": {}, "modes": None, "seeds": None}
    return plan_sweep(path, **given | changes)


def toml(folder: Path, text: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def finished(
    cell: PlannedCell, error: float, *times_and_errors: tuple[float, float], **summary: Any
) -> Result:
    curve = [Point(time_s, at) for time_s, at in times_and_errors]
    return Result(
        cell,
        State("finished", 0.0, process_s=9.0),
        {"mode": "pipelined", "eval.error": error, **summary},
        curve,
        {},
    )


def rows_of(out: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((out / "results.csv").read_text().splitlines()))


def test_flags_alone_sweep_the_interval_in_both_modes() -> None:
    plan = sweep(grid={"sync.interval": [1, 4]}, seeds=[0, 1])
    assert len(plan.cells) == 8
    assert plan.cells[0].settings == {"mode": "pipelined", "sync.interval": 1, "seed": 0}
    assert plan.cells[3].settings == {"mode": "fixed-lag", "sync.lag": 1, "sync.interval": 4, "seed": 0}


def test_one_seed_of_every_cell_runs_before_the_next_seed() -> None:
    plan = sweep(grid={"sync.interval": [1, 4]}, seeds=[5, 3])
    assert [cell.seed for cell in plan.cells] == [5, 5, 5, 5, 3, 3, 3, 3]


def test_a_file_may_write_keys_in_any_way(tmp_path: Path) -> None:
    text = """
    seeds = [7]
    [base]
    "train.steps" = 3
    "model.options" = {width = 4}
    [base.data]
    examples = 100
    [grid]
    "sync.interval" = [1]
    selection.keep = [0.5]
    """
    (cell,) = sweep(toml(tmp_path, text)).cells
    assert cell.swept == {"sync.interval": 1, "selection.keep": 0.5}
    assert cell.settings == {
        "train.steps": 3,
        "model.options": {"width": 4},
        "data.examples": 100,
        **cell.swept,
        "seed": 7,
    }
    assert cell.arm == "pipelined"


def test_the_base_may_be_a_config_beside_the_file_and_flags_win(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("[train]\nsteps = 3\nbatch_size = 8\n")
    path = toml(tmp_path, '[base]\nconfig = "base.toml"\ntrain.steps = 4\n[grid]\nsync.interval = [1]')
    assert sweep(path, settings={"train.batch_size": 16}).cells[0].settings["train.batch_size"] == 16
    assert sweep(path).cells[0].settings["train.steps"] == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[grid]\nsync.interval = []", r"grid sync\.interval = \[\]: has no values"),
        ("[grid]\nsync.interval = 4", "is not a list of values"),
        ("[grid]\nsync.interval = [4, 4]", "holds a value twice"),
        ("seeds = 0\n[grid]\nsync.interval = [4]", "seeds = 0: leaves nothing to run"),
        ("seeds = [1, 1]\n[grid]\nsync.interval = [4]", "names a seed twice"),
        ("seeds = 2", "nothing is swept"),
        ("gird = 1", "unknown key in .*, the nearest known one is grid"),
        ("not toml", "is not TOML"),
        ("[[arms]]\nname = 'a'\n[[arms]]\nname = 'a'", "is the name of two arms"),
        ("[[arms]]\nmode = 'inline'", "every arm needs a name"),
        (
            "[grid]\nmode = ['inline']\n[[arms]]\nname = 'a'\nmode = 'inline'",
            "set by arm 'a' and swept by the grid too",
        ),
        ("[grid]\nseed = [1, 2]", "a study has seeds"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sweep(toml(tmp_path, text))


def test_a_wrong_cell_is_named_with_its_key_before_anything_starts() -> None:
    with pytest.raises(
        UserError,
        match=r"'pipelined interval 0 seed 0': sync\.interval = 0: must be at least 1.*Nothing was started",
    ):
        sweep(grid={"sync.interval": [1, 0]})
    with pytest.raises(UserError, match=r"kep = 1: unknown key"):
        sweep(grid={"selection.kep": [1]})


def test_flags_of_lists_are_read_as_values() -> None:
    assert grid_flag("selection.keep=0.25,0.5") == ("selection.keep", [0.25, 0.5])
    assert grid_flag("mode=inline,pipelined") == ("mode", ["inline", "pipelined"])
    assert (seeds_flag("3"), seeds_flag("4,5"), seeds_in([2])) == ([0, 1, 2], [4, 5], [2])
    with pytest.raises(ConfigError, match=r"--grid sync\.interval = "):
        grid_flag("sync.interval=")
    with pytest.raises(ConfigError, match="neither a number of seeds"):
        seeds_flag("-1")


def test_cells_that_would_share_a_folder_are_numbered() -> None:
    arms = [PlannedArm("a b", {}), PlannedArm("a/b", {})]
    names = [cell.cell for cell in lay_out({}, arms, {}, [0])]
    assert names == ["a-b_seed-0", "a-b_seed-0_2"]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.name)
def test_every_sweep_in_the_tree_is_a_plan(path: Path) -> None:
    assert len(sweep(path).cells) >= 12


def test_a_second_process_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    plan = sweep(grid={"sync.interval": [1]})
    folder = StudyFolder(tmp_path / "out", plan)
    with pytest.raises(RunDirError, match="another process is working in"):
        StudyFolder(tmp_path / "out", plan)
    folder.close()
    StudyFolder(tmp_path / "out", plan).close()


def test_a_different_plan_in_the_folder_is_refused_with_what_differs(tmp_path: Path) -> None:
    StudyFolder(tmp_path, sweep(grid={"sync.interval": [1]}, settings={"train.steps": 3})).close()
    with pytest.raises(
        RunDirError, match=r"different plan: train\.steps is 3 there and 4 here\. .*another --out"
    ):
        StudyFolder(tmp_path, sweep(grid={"sync.interval": [1]}, settings={"train.steps": 4}))
    with pytest.raises(RunDirError, match=r"cell pipelined_interval-1_seed-0 is only there"):
        StudyFolder(tmp_path, sweep(grid={"sync.interval": [2]}, settings={"train.steps": 3}))


def test_a_flag_that_an_arm_would_overrule_is_refused() -> None:
    arms = [PlannedArm("full", {}), PlannedArm("shorter", {"train.epochs": 2.0})]
    cells = lay_out({"train.epochs": 1.0}, arms, {}, [0])
    with pytest.raises(
        ConfigError,
        match=r"--set train.epochs = 1.0: the grid, a task or an arm sets it to 2.0 for 'shorter seed 0'",
    ):
        refuse_overruled(cells, {"train.epochs": 1.0})
    refuse_overruled(cells[:1], {"train.epochs": 1.0})


def test_a_plan_may_grow_by_seeds_and_values_and_keeps_what_is_done(tmp_path: Path) -> None:
    small = sweep(grid={"sync.interval": [1]})
    folder = StudyFolder(tmp_path, small)
    folder.run_path(small.cells[0]).mkdir(parents=True)
    (folder.run_path(small.cells[0]) / "summary.json").write_text('{"status": "finished"}')
    folder.write_state(small.cells[0], State("finished", 1.0))
    folder.close()
    grown = sweep(grid={"sync.interval": [1, 2]}, seeds=[0, 1])
    folder = StudyFolder(tmp_path, grown)
    assert [cell.cell for cell in grown.cells if folder.state(cell)] == [small.cells[0].cell]
    assert len(json.loads((tmp_path / "plan.json").read_text())["cells"]) == len(grown.cells)
    folder.close()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunDirError, match="holds no study"):
        StudyFolder(tmp_path, sweep(grid={"sync.interval": [1]}))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_finished_cell_whose_run_is_gone_has_not_begun(tmp_path: Path) -> None:
    plan = sweep(grid={"sync.interval": [1]})
    folder = StudyFolder(tmp_path, plan)
    folder.write_state(plan.cells[0], State("finished", 1.0))
    assert folder.state(plan.cells[0]) is None
    folder.close()


def test_the_last_word_of_a_failed_run_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("step 1\nsbpipe: data.path is missing\nbye\n")
    assert last_word(log, 2) == "data.path is missing"
    log.write_text("Traceback\n  File\nValueError: no\n")
    assert last_word(log, 1) == "ValueError: no"
    assert last_word(log, -9) == "killed by SIGKILL"


def test_time_counts_from_the_process_start_without_measuring(tmp_path: Path) -> None:
    events = [
        {"kind": "eval", "t": 110.0, "evaluate_s": 1.0, "error": 0.5},
        {"kind": "eval", "t": 120.0, "evaluate_s": 3.0, "error": 0.2},
    ]
    (tmp_path / "events-trainer.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    curve, _ = curve_of(read_run(tmp_path), started=100.0)
    assert [point.time_s for point in curve] == [9.0, 17.0]
    assert (time_to_target(curve, 0.5), time_to_target(curve, 0.4), time_to_target(curve, 0.1)) == (
        9.0,
        17.0,
        None,
    )


def test_one_run_has_no_spread() -> None:
    assert sd_of([0.1]) is None
    assert sd_of([1.0, 3.0]) == pytest.approx(2**0.5)


def test_time_left_is_taken_from_cells_of_the_same_kind() -> None:
    fast, slow, fast_again, slow_again = sweep(grid={"sync.interval": [1]}, seeds=[0, 1]).cells
    done = {"a": (fast, 10.0), "b": (slow, 30.0)}
    assert time_left_s([Running(fast_again, 4.0, None)], [slow_again], done) == pytest.approx(6.0 + 30.0)
    assert time_left_s([Running(fast_again, 4.0, 1.0)], [slow_again], done) == pytest.approx(1.0 + 30.0)
    assert time_left_s([Running(fast, 4.0, 6.0)], [slow], {}) == pytest.approx(6.0 + 10.0)
    assert time_left_s([Running(fast, 4.0, None)], [slow], {}) is None


def test_time_left_is_shared_by_cells_side_by_side_but_not_by_those_that_run_alone() -> None:
    first, second, third, _ = sweep(grid={"sync.interval": [1]}, seeds=[0, 1]).cells
    running, done = [Running(first, 0.0, 10.0), Running(second, 0.0, 30.0)], {"a": (third, 20.0)}
    assert time_left_s(running, [third], done, jobs=2) == pytest.approx((10.0 + 30.0 + 20.0) / 2)
    assert time_left_s(running, [third], done, jobs=2, alone={third.cell}) == pytest.approx(
        (10.0 + 30.0) / 2 + 20.0
    )
    assert time_left_s(running, [], done, jobs=2) == pytest.approx(30.0)


def test_a_point_is_the_mean_over_seeds_and_targets_come_from_the_first_point() -> None:
    plan = sweep(grid={"sync.interval": [1, 64]}, seeds=[0, 1], modes=["pipelined"])
    fresh, stale, fresh_1, stale_1 = plan.cells
    results = [
        finished(fresh, 0.10, (10.0, 0.3), (20.0, 0.10), **{"staleness.mean": 1.0}),
        finished(fresh_1, 0.20, (10.0, 0.15), (20.0, 0.20)),
        finished(stale, 0.30, (10.0, 0.5), (16.0, 0.17)),
        replace(finished(stale_1, 0.0), state=State("failed", 0.0), summary={}),
    ]
    analysis = analyse(plan, results)
    first, second = analysis["points"]
    assert [target["error"] for target in analysis["targets"]] == pytest.approx([0.165, 0.18, 0.21])
    assert (first["error_mean"], first["error_sd"], first["n"]) == (
        pytest.approx(0.15),
        pytest.approx(0.0707, abs=1e-4),
        2,
    )
    assert (first["time_to_target_mean"], first["reached"], first["staleness_mean"]) == (15.0, 2, 1.0)
    assert (second["n"], second["failed"], second["time_to_target_mean"]) == (1, 1, 16.0)
    assert "1 (1 failed)" in tables_of(plan, analysis)[0].as_text()


def test_a_row_holds_the_swept_keys_and_every_number_by_its_name(tmp_path: Path) -> None:
    plan = sweep(grid={"sync.interval": [4]}, seeds=[3])
    write_results(tmp_path, plan, [finished(plan.cells[0], 0.1, **{"weights.digest": "f", "steps": 7})], {})
    (row,) = rows_of(tmp_path)
    assert (row["sync.interval"], row["seed"], row["mode"], row["steps"], row["eval.error"]) == (
        "4",
        "3",
        "pipelined",
        "7",
        "0.1",
    )
    assert "weights.digest" not in row


def test_rows_with_different_numbers_share_one_header() -> None:
    assert to_csv([{"a": 1}, {"a": 2, "b": 3}]) == "a,b\n1,\n2,3\n"


def test_an_arms_settings_may_stand_beside_its_name_or_under_settings() -> None:
    beside, under = arms_in(
        [{"name": "a", "sync": {"lag": 2}}, {"name": "b", "settings": {"sync.lag": 2}, "strategy": "sb"}]
    )
    assert beside.settings == under.settings == {"sync.lag": 2}
    assert (beside.strategy, under.strategy) == ("a", "sb")
    assert grid_in({"sync": {"lag": [1]}}) == {"sync.lag": [1]}
