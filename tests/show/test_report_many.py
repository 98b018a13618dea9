"""What is compared and over which time; times that add up; tables of arms; and data that is missing."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.written_studies import BEGIN, comparison, summary_of, sync_sweep, write_run, write_study

from sbpipe.runs import read_run, read_study
from sbpipe.runs.study.arm_group import group_runs, group_study
from sbpipe.show.charts import to_svg
from sbpipe.show.report.breakdown import PARTS, breakdown, breakdown_charts
from sbpipe.show.report.many import charts_of_many, tables_of_many

# --- time and grouping ----------------------------------------------------------------------------


def test_time_includes_start_up_and_excludes_measuring(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.5, 0.2], pace_s=3.0)
    (trial,) = group_runs([read_run(run)]).arms[0].trials
    assert [point.time_s for point in trial.curve] == pytest.approx([2.0 + 3.0, 2.0 + 6.0])


def test_time_of_a_cell_counts_from_the_spawning_of_its_process(tmp_path: Path) -> None:
    study = read_study(
        write_study(tmp_path, "comparison", {"a": {"arm": "a", "seed": 0, "errors": [0.5], "pace_s": 3.0}})
    )
    assert group_study(study).arms[0].trials[0].curve[0].time_s == pytest.approx(1.0 + 2.0 + 3.0)


def test_a_pause_before_a_resume_is_no_training_time(tmp_path: Path) -> None:
    study = write_study(
        tmp_path, "comparison", {"a": {"arm": "a", "seed": 0, "errors": [0.5], "pace_s": 3.0}}
    )
    events = study / "cells" / "a" / "events-trainer.jsonl"
    late = {
        "kind": "eval",
        "t": BEGIN + 9000.0,
        "elapsed_s": 8.0,
        "evaluate_s": 1.0,
        "error": 0.1,
        "step": 2,
        "candidates": 60,
    }
    events.write_text(
        events.read_text() + json.dumps({"kind": "resumed", "step": 1}) + "\n" + json.dumps(late) + "\n"
    )
    assert group_study(read_study(study)).arms[0].trials[0].curve[-1].time_s == pytest.approx(2.0 + 8.0 - 1.0)


def test_runs_that_differ_only_in_the_seed_are_one_arm(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(seed), [0.2], seed=seed, sync__interval=4) for seed in (0, 1, 2)]
    runs.append(write_run(tmp_path / "other", [0.3], sync__interval=8, mode="lockstep"))
    group = group_runs([read_run(run) for run in runs])
    assert {arm.name: len(arm.trials) for arm in group.arms} == {
        "pipelined, sync.interval=4": 3,
        "lockstep, sync.interval=8": 1,
    }


def test_runs_that_differ_in_much_are_called_by_their_folders(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", [0.2], a__x=1, a__y=1, a__z=1, a__w=1)
    other = write_run(tmp_path / "other", [0.2], a__x=2, a__y=2, a__z=2, a__w=2)
    assert group_runs([read_run(one), read_run(other)]).names == ["one", "other"]


def test_runs_of_the_same_folder_name_stay_apart(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / parent / "run", [0.2], a__x=k, a__y=k, a__z=k, a__w=k)
        for k, parent in enumerate(("p", "q"))
    ]
    group = group_runs([read_run(path) for path in paths])
    assert group.names == ["run", "run (q/run)"]
    assert [trial.name for arm in group.arms for trial in arm.trials] == ["p/run", "q/run"]


def test_the_arm_that_trains_on_everything_is_the_reference_even_if_it_ends_worse(tmp_path: Path) -> None:
    sb = write_run(tmp_path / "sb", [0.1])
    full = write_run(tmp_path / "full", [0.2], selection__policy="full")
    group = group_runs([read_run(sb), read_run(full)])
    assert group.reference == "full"
    assert [target.error for target in group.targets] == pytest.approx([0.22, 0.24, 0.28])


# --- breakdown ------------------------------------------------------------------------------------

SECONDS = st.floats(0, 1e4)


@settings(max_examples=100, deadline=None)
@given(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS)
def test_the_parts_on_the_clock_add_up_to_wall_time_less_measuring(
    forward: float, backward: float, optimizer: float, wait: float, busy: float, evaluate: float, rest: float
) -> None:
    spent = {
        "trainer.forward_s": forward,
        "trainer.backward_s": backward,
        "trainer.optimizer_s": optimizer,
        "trainer.wait_s": wait,
    }
    wall_s = forward + backward + optimizer + wait + evaluate + rest
    parts = breakdown({**spent, "selector.busy_s": busy, "trainer.evaluate_s": evaluate, "wall_s": wall_s})
    assert parts is not None
    assert sum(parts[part] for part in PARTS if part != "hidden") == pytest.approx(wall_s - evaluate)
    assert parts["selecting"] + parts["hidden"] == pytest.approx(busy)
    assert parts["selecting"] + parts["idle"] == pytest.approx(wait)


def test_selecting_that_nobody_waited_for_is_hidden_and_waiting_for_nobody_is_idle() -> None:
    hidden, idle = breakdown(summary_of([0.1])), breakdown(summary_of([0.1], **{"selector.busy_s": 0.5}))
    assert hidden is not None
    assert idle is not None
    assert (hidden["selecting"], hidden["hidden"], hidden["idle"]) == (1.5, 3.5, 0.0)
    assert (idle["selecting"], idle["hidden"], idle["idle"]) == (0.5, 0.0, 1.0)


def test_a_summary_without_times_has_no_bar_but_a_note(tmp_path: Path) -> None:
    good, old = (
        write_run(tmp_path / "good", [0.1], mode="inline"),
        write_run(tmp_path / "old", [0.1], mode="lockstep"),
    )
    (old / "summary.json").write_text(json.dumps({"status": "finished", "eval.error": 0.1, "wall_s": 3.0}))
    chart = breakdown_charts(group_runs([read_run(good), read_run(old)]))[0]
    assert {row["arm"] for row in chart.spec["layer"][0]["data"]["values"]} == {"inline"}
    assert any("No bar for lockstep" in note for note in chart.notes)


def test_arms_with_unequal_candidates_are_also_drawn_per_candidate(tmp_path: Path) -> None:
    few, many = (
        write_run(tmp_path / "few", [0.1], mode="inline"),
        write_run(tmp_path / "many", [0.1], mode="lockstep"),
    )
    (many / "summary.json").write_text(json.dumps(summary_of([0.1], status="finished", candidates=4000)))
    charts = breakdown_charts(group_runs([read_run(few), read_run(many)]))
    assert [chart.name for chart in charts] == ["time-breakdown", "time-breakdown-per-candidate"]
    forward = {
        row["arm"]: row["amount"]
        for row in charts[1].spec["layer"][0]["data"]["values"]
        if row["part"] == "forward, training"
    }
    assert forward == {"inline": pytest.approx(2000.0), "lockstep": pytest.approx(500.0)}


# --- arms -----------------------------------------------------------------------------------------


def test_times_to_targets_and_speedups_are_paired_by_seed(tmp_path: Path) -> None:
    group = group_study(read_study(comparison(tmp_path)))
    assert [target.error for target in group.targets] == pytest.approx([0.121, 0.154])
    fast = group.analysis["arms"]["fast"]
    strict, easy = fast["targets"]
    assert (strict["reached"], strict["of"]) == (1, 2)
    assert strict["time_mean"] == pytest.approx(1.0 + 2.0 + 3.0)
    assert strict["speedup_mean"] == pytest.approx((3.0 + 12.0) / 6.0)
    assert fast["error_difference_mean"] == pytest.approx(((0.11 - 0.10) + (0.20 - 0.12)) / 2)
    assert easy["factor"] == 1.4


def test_a_seed_that_the_baseline_lacks_is_in_no_pair(tmp_path: Path) -> None:
    cells = {f"fast-{seed}": {"arm": "fast", "seed": seed, "errors": [0.1 + 0.1 * seed]} for seed in (0, 1)}
    cells["full-0"] = {"arm": "full", "seed": 0, "errors": [0.3], "pace_s": 4.0}
    group = group_study(
        read_study(write_study(tmp_path, "comparison", cells, baseline="full", targets=[1.1]))
    )
    fast = group.analysis["arms"]["fast"]
    assert (fast["n"], fast["targets"][0]["reached"]) == (2, 2)
    assert fast["error_difference_mean"] == pytest.approx(0.1 - 0.3)
    assert fast["targets"][0]["speedup_mean"] == pytest.approx((3.0 + 4.0) / (3.0 + 1.0))


def test_losing_and_failed_arms_stay_in_the_table(tmp_path: Path) -> None:
    table = tables_of_many([], [read_study(comparison(tmp_path))])[0]
    rows = {row[0]: row for row in table.rows}
    assert set(rows) == {"full", "fast", "bad"}
    assert rows["full"][table.header.index("difference")] == "baseline"
    assert rows["bad"][1] == "0 (1 failed)"
    assert all(len(row) == len(table.header) for row in table.rows)


def test_the_curves_that_a_comparison_left_spare_reading_its_runs(tmp_path: Path) -> None:
    path = comparison(tmp_path)
    results = json.loads((path / "results.json").read_text())
    curve = [{"time_s": 77.0, "trained": 5, "candidates": 9, "error": 0.33}]
    results["analysis"] = {"arms": {"fast": {"curves": {"0": curve}}}}
    (path / "results.json").write_text(json.dumps(results))
    shutil.rmtree(path / "cells")
    group = group_study(read_study(path))
    fast = next(arm for arm in group.arms if arm.name == "fast")
    assert [trial.time_s for trial in fast.trials] == [77.0, None]
    assert group.analysis["arms"]["fast"]["error_mean"] == pytest.approx((0.11 + 0.20) / 2)


def test_the_price_of_a_plan_bills_both_devices_in_the_report_too(tmp_path: Path) -> None:
    cells = {"a": {"arm": "a", "seed": 0, "errors": [0.5], "pace_s": 3.0}}
    price = {"trainer": 3600, "selector": 360}
    study = read_study(write_study(tmp_path, "comparison", cells, baseline="a", price=price))
    table = tables_of_many([], [study])[0]
    assert table.rows[0][table.header.index("price")] == "6.6000"


def test_charts_of_a_study_with_failed_and_planned_cells_say_so(tmp_path: Path) -> None:
    charts = charts_of_many([], [read_study(comparison(tmp_path))])
    assert any("bad, seed 0: says: the model exploded" in note for note in charts[0].notes)
    assert any("bad, seed 1: is planned" in note for note in charts[0].notes)


# --- missing data, and pictures -------------------------------------------------------------------


def test_a_run_without_evaluations_is_a_note(tmp_path: Path) -> None:
    good, empty = (
        write_run(tmp_path / "good", [0.3, 0.1], mode="inline"),
        write_run(tmp_path / "empty", [], mode="lockstep"),
    )
    charts = charts_of_many([read_run(good), read_run(empty)], [])
    assert any(note.startswith("empty: has no evaluation") for note in charts[0].notes)
    alone = charts_of_many([read_run(empty)], [])
    assert alone[0].meaning == "No test error has been measured."


def test_an_empty_folder_breaks_nothing(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    run = read_run(tmp_path / "nothing")
    charts = charts_of_many([run], [])
    assert [(chart.name, chart.spec) for chart in charts] == [("error-over-time", {}), ("time-breakdown", {})]
    assert all(chart.meaning.startswith("No ") for chart in charts)
    assert tables_of_many([run], [])[0].rows[0][0] == "nothing"


def test_charts_of_several_studies_have_names_of_their_own(tmp_path: Path) -> None:
    studies = [read_study(comparison(tmp_path / "a")), read_study(sync_sweep(tmp_path / "b"))]
    names = [chart.name for chart in charts_of_many([read_run(write_run(tmp_path / "run", [0.1]))], studies)]
    assert len(set(names)) == len(names) > 8


def test_every_chart_of_a_comparison_and_a_sweep_can_be_drawn(tmp_path: Path) -> None:
    studies = [read_study(comparison(tmp_path / "a")), read_study(sync_sweep(tmp_path / "b"))]
    for chart in charts_of_many([], studies):
        assert "NaN" not in json.dumps(chart.spec)
        # Without `$schema` a page takes a specification for Vega-Lite only by one of these words.
        assert chart.spec.keys() & {"mark", "layer", "hconcat", "vconcat"}
        assert "<svg" in to_svg(chart)
