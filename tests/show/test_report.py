"""What a report says of a run: the pictures' numbers, the trace, what is missing, and which paths it
refuses.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.runs import settings
from support.synthetic_run import BEGAN, LOOP_FIELDS, LOOP_FROM, STEP_S, stamped, write_examples, write_run

from sbpipe.commands import report as command
from sbpipe.errors import RunDirError
from sbpipe.runs import Run, read_run
from sbpipe.show.charts import to_png, to_svg
from sbpipe.show.report.build import build_report, read_sources, sections_of, trace_paths
from sbpipe.show.report.classes import batch_counts, swings
from sbpipe.show.report.course import apart_s, selector_idle, trainer_idle
from sbpipe.show.report.examples import captions_of, data_uri, example_charts, read_examples
from sbpipe.show.report.facts import numbers_of, status_of, tiles_of
from sbpipe.show.report.one import charts_of_one, sections_of_one
from sbpipe.show.report.page import html_page
from sbpipe.show.report.section import Section
from sbpipe.show.report.spans import bars_of, clock_shift
from sbpipe.show.report.stability import FIDELITY, stability_charts
from sbpipe.show.report.staleness import histogram_rows, staleness_over_steps
from sbpipe.show.report.table import Table
from sbpipe.show.report.thinning import bucket_means, stretches, thin
from sbpipe.show.report.timeline import timeline_chart, typical_window
from sbpipe.show.report.trace import write_trace
from sbpipe.trainer.steering.swing import WINDOW, swing_of

SETTINGS_ONLY = ("summary.json", "examples.npz")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return read_run(write_run(tmp_path_factory.mktemp("runs") / "whole", steps=120))


def write_study(path: Path) -> Path:
    """A comparison of two arms, one seed each, of which the second never ran."""
    cells = [
        {"cell": name, "arm": name, "seed": 0, "swept": {}, "settings": {}} for name in ("sb", "uniform")
    ]
    write_run(path / "cells" / "sb")
    plan = {
        "kind": "comparison",
        "name": "c",
        "swept": [],
        "seeds": [0],
        "baseline": "uniform",
        "targets": [1.1],
        "price": None,
    }
    (path / "plan.json").write_text(json.dumps(plan | {"cells": cells}))
    return path


# --- thinning -------------------------------------------------------------------------------------


def test_thinning_keeps_the_ends_and_never_more_than_asked() -> None:
    assert thin(range(1000), 4) == [0, 333, 666, 999]
    assert thin([1, 2, 3], 5) == [1, 2, 3]
    assert thin([1, 2, 3], 1) == [3]


def test_stretches_hold_every_element_once() -> None:
    pieces = stretches(range(10), 4)
    assert [k for piece in pieces for k in piece] == list(range(10))
    assert len(stretches([1, 2], 5)) == 2


def test_bucket_means_leave_out_what_is_not_known() -> None:
    rows = [
        {"step": 0, "value": 1.0},
        {"step": 1, "value": None},
        {"step": 2, "value": 3.0},
        {"step": 3, "value": 5.0},
    ]
    assert bucket_means(rows, 2) == [{"step": 0.5, "value": 1.0}, {"step": 2.5, "value": 4.0}]


# --- timeline and trace ---------------------------------------------------------------------------


def test_a_typical_window_avoids_the_warm_up_and_a_stall() -> None:
    begins = [5.0 * k for k in range(20)] + [100.0 + k for k in range(100)]
    begins = begins[:70] + [begin + 30.0 for begin in begins[70:]]
    first, last = typical_window(begins, 20)
    assert last - first == 20
    assert begins[last] - begins[first] == 20.0


def test_every_span_of_a_stage_is_a_bar_of_its_own(run: Run) -> None:
    bars = [bar for bar in bars_of(run) if bar.task == "lease 5" and bar.stage == "score"]
    assert [round(bar.end - bar.begin, 6) for bar in bars] == [0.014, 0.014]
    assert {bar.lane for bar in bars} == {"selector 0000"}


def test_processor_time_is_in_no_lane(run: Run) -> None:
    assert "dispatch" not in {bar.stage for bar in bars_of(run)}


def test_a_selector_of_another_host_is_moved_to_the_trainers_clock(tmp_path: Path) -> None:
    here = [stamped(10.0 + k, "trainer", "step") for k in range(3)]
    there = [{**event, "clock": event["clock"] + 500.0} for event in here]
    assert clock_shift(here, there) == pytest.approx(-500.0)
    assert clock_shift(here, [stamped(99.0, "selector", "selection")]) == 0.0


def test_the_timeline_says_which_steps_it_shows_and_has_both_roles(run: Run) -> None:
    chart = timeline_chart(run)
    assert chart is not None
    assert "Steps 50 to 70 of 120" in chart.notes[0]
    rows = chart.spec["data"]["values"]
    assert {row["lane"] for row in rows} == {"trainer", "trainer, side threads", "selector 0000"}
    assert {"score", "send", "wait", "receive", "forward", "backward", "optimizer", "publish", "apply"} <= {
        row["stage"] for row in rows
    }


def test_a_trace_holds_every_stage_with_named_processes(run: Run, tmp_path: Path) -> None:
    assert write_trace(run, tmp_path / "trace.json") == f"{len(list(bars_of(run))):,} stages of the whole run"
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    forward = [event for event in events if event["ph"] == "X" and event["name"] == "forward"]
    assert len(forward) == 120
    assert forward[0]["dur"] == pytest.approx(12_000, abs=1)
    assert forward[1]["ts"] - forward[0]["ts"] == pytest.approx(1e6 * STEP_S, abs=1)
    named = {
        event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "process_name"
    }
    assert named == {"trainer", "selector 0000"}
    assert {event["name"] for event in events if event["ph"] == "C"} == {
        "staleness (steps)",
        "queue (kept examples)",
    }


def test_a_trace_of_a_long_run_is_cut_to_its_middle_and_says_so(run: Run, tmp_path: Path) -> None:
    said = write_trace(run, tmp_path / "trace.json", most=100)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert said is not None
    assert "100 of" in said
    assert sum(event["ph"] == "X" for event in events) == 100
    tasks = {event["args"]["for"] for event in events if event["ph"] == "X"}
    assert all(40 < int(task.split()[1]) < 80 for task in tasks)


# --- numbers in the pictures ----------------------------------------------------------------------


def test_idle_shares_are_those_of_the_spans(run: Run) -> None:
    assert np.mean([row["idle"] for row in trainer_idle(run)]) == pytest.approx(0.007 / STEP_S, rel=0.01)
    assert np.mean([row["idle"] for row in selector_idle(run)]) == pytest.approx(0.005 / STEP_S, rel=0.01)


def test_staleness_is_counted_by_example_and_split_into_its_parts() -> None:
    steps = [{"staleness_counts": [[1, 0, 30], [1, 2, 10]]}, {"staleness_counts": [[2, 0, 40]]}]
    shares = {(row["part"], row["steps"]): row["share"] for row in histogram_rows(steps)}
    assert shares["age on arrival", "1"] == shares["age on arrival", "2"] == 0.5
    assert shares["time in the queue", "2"] == 0.125
    assert [shares["staleness (both)", str(steps)] for steps in range(4)] == [0.0, 0.375, 0.5, 0.125]


def test_batches_drawn_at_random_swing_as_much_as_chance() -> None:
    counts = np.random.default_rng(0).multinomial(64, [0.1, 0.3, 0.6], size=4000)
    table = batch_counts([{"class_counts": row.tolist()} for row in counts])
    assert swings(table) == pytest.approx([1.0, 1.0, 1.0], abs=0.1)


def test_a_class_that_floods_and_starves_swings_more_than_chance() -> None:
    steps = [{"class_counts": [24, 40] if k % 4 < 2 else [8, 56]} for k in range(200)]
    assert swings(batch_counts(steps)).min() > 2.0


def test_classes_swing_by_the_definition_of_the_whole() -> None:
    counts = np.random.default_rng(1).multinomial(64, [0.5, 0.5], size=WINDOW)
    assert swings(counts) == pytest.approx([swing_of(counts)] * 2)


def test_a_class_that_never_appears_does_not_swing() -> None:
    steps = [{"class_counts": [3 + k % 2, 5, 0]} for k in range(WINDOW)]
    assert swings(batch_counts(steps))[2] == 0.0


def test_the_swing_is_drawn_from_where_it_is_known_with_the_line_of_chance(run: Run) -> None:
    swing, _ = stability_charts(run)
    lines, level = (layer["data"]["values"] for layer in swing.spec["layer"])
    assert {row["number"] for row in lines} == {"swing of the train batches", "swing of the predictions"}
    assert min(row["step"] for row in lines) == LOOP_FROM
    assert level == [{"chance": 1.0}]
    assert "1 = calm" in swing.meaning


def test_what_steers_the_loop_is_drawn_beside_the_fidelity_and_explained(run: Run) -> None:
    _, steering = stability_charts(run)
    assert {row["number"] for row in steering.spec["data"]["values"]} == {
        "strength",
        "guard",
        "effective sample size",
        FIDELITY,
    }
    assert all(
        word in steering.meaning for word in ("Strength:", "Guard:", "Effective sample size:", "Fidelity:")
    )


def test_only_what_a_run_measured_is_drawn_and_explained(tmp_path: Path) -> None:
    run = read_run(
        write_run(tmp_path / "run", leave_out=("prediction_swing", "strength", "guard", "spearman"))
    )
    swing, steering = stability_charts(run)
    assert {row["number"] for row in steering.spec["data"]["values"]} == {"effective sample size"}
    assert "Guard" not in steering.meaning
    assert "Prediction" not in swing.meaning


def test_an_older_run_is_not_asked_whether_its_loop_is_stable(tmp_path: Path) -> None:
    path = write_run(tmp_path / "old", leave_out=LOOP_FIELDS)
    assert stability_charts(read_run(path)) == []
    assert "Is the loop stable?" not in build_report([path], path / "report.html", figures=False).read_text()


def test_the_staleness_of_the_fast_parts_is_a_line_only_where_it_was_measured(run: Run) -> None:
    def parts(steps: list[dict[str, Any]]) -> set[str]:
        chart = staleness_over_steps(steps)
        assert chart is not None
        return {row["part"] for row in chart.spec["data"]["values"]}

    older = [{**event, "fast_staleness_mean": None} for event in run.of("step")]
    assert parts(list(run.of("step"))) - parts(older) == {"staleness of the fast parts"}


def test_a_run_without_an_end_shows_its_last_progress(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "running", leave_out=SETTINGS_ONLY))
    assert status_of(run).startswith("no end recorded")
    assert numbers_of(run)["steps"] == 60
    assert {("steps", "60"), ("swing (1 = calm)", "1.50"), ("effective sample size", "0.93")} <= set(
        tiles_of(run)
    )


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    path = write_run(tmp_path / "failed", leave_out=SETTINGS_ONLY)
    with (path / "events-trainer.jsonl").open("a") as file:
        file.write(json.dumps(stamped(BEGAN + 99, "trainer", "failed", error="loss is nan")) + "\n")
    assert status_of(read_run(path)) == "failed: loss is nan"


# --- examples -------------------------------------------------------------------------------------


def test_contact_sheets_really_hold_the_pictures(tmp_path: Path) -> None:
    from PIL import Image

    write_examples(tmp_path / "examples.npz")
    with np.load(tmp_path / "examples.npz") as file:
        arrays = dict(file)
    arrays["hardest_images"][:] = (255, 0, 0)
    chart = next(chart for chart in example_charts(arrays) if chart.name == "examples-hardest")
    (tmp_path / "sheet.png").write_bytes(to_png(chart, scale=1.0))
    pixels = np.asarray(Image.open(tmp_path / "sheet.png").convert("RGB")).reshape(-1, 3)
    assert int((pixels == (255, 0, 0)).all(axis=1).sum()) == pytest.approx(7 * 84 * 84, rel=0.03)
    assert to_svg(chart).count("data:image/png") == 7


def test_grey_examples_and_unknown_classes_can_be_shown(tmp_path: Path) -> None:
    write_examples(tmp_path / "examples.npz", channels=1)
    arrays = read_examples(tmp_path, [])
    arrays["easiest_targets"][:] = -1
    arrays["easiest_scores"][:] = np.nan
    assert captions_of("easiest", arrays)[1] == "true –\nsaid 1\nscore –"
    assert captions_of("most_kept", arrays)[2].endswith("kept 2×")
    assert data_uri(arrays["easiest_images"][0]).startswith("data:image/png;base64,")


def test_damaged_examples_become_a_note(tmp_path: Path) -> None:
    (tmp_path / "examples.npz").write_bytes(b"PK\x03\x04 cut")
    notes: list[str] = []
    assert read_examples(tmp_path, notes) == {}
    assert "cannot be read" in notes[0]


# --- the page and its paths -----------------------------------------------------------------------


def test_a_whole_run_has_every_figure(run: Run) -> None:
    names = {chart.name for chart in charts_of_one(run)}
    assert {
        "timeline",
        "idle",
        "loss",
        "learning-rate",
        "staleness-histogram",
        "fidelity-against-staleness",
    } <= names
    assert {"swing", "steering"} <= names
    assert {
        "score-distribution",
        "keep-probability",
        "times-kept",
        "keep-rate-by-class",
        "class-swing",
        "class-share",
    } <= names
    assert {"examples-easiest", "examples-hardest", "target-confidence", "accuracy-by-percentile"} <= names


def test_an_older_run_says_what_is_missing(tmp_path: Path) -> None:
    missing = ("scores", "staleness_counts", "confidence", "spans", "examples.npz")
    sections = sections_of_one(read_run(write_run(tmp_path / "old", leave_out=missing)))
    notes = " ".join(note for section in sections for note in section.notes)
    for word in ("`scores`", "staleness_counts", "confidence", "no spans", "examples.npz"):
        assert word in notes


def test_a_cut_run_makes_a_report_that_says_so(tmp_path: Path) -> None:
    path = write_run(tmp_path / "cut", leave_out=SETTINGS_ONLY)
    events = path / "events-trainer.jsonl"
    events.write_bytes(events.read_bytes()[:-40])
    assert "the last line is cut" in build_report([path], path / "report.html", figures=False).read_text()


def test_a_report_leaves_page_figures_and_trace(tmp_path: Path) -> None:
    path = write_run(tmp_path / "small", steps=12, leave_out=("examples.npz", "scores", "confidence"))
    page = build_report([path], path / "report.html").read_text()
    assert (path / "trace.json").exists()
    for name in ("timeline", "loss", "staleness-histogram"):
        assert (path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (path / "figures" / f"{name}.svg").read_text()
        assert f'href="figures/{name}.png"' in page


def test_words_of_a_run_cannot_break_out_of_the_page() -> None:
    evil = "</script><script>alert(1)</script>"
    table = Table(evil, [evil], [[evil]], evil)
    page = html_page(
        evil, evil, [Section("a", evil, tables=[table], tiles=[(evil, evil)], notes=[evil])], None, evil
    )
    assert "<script>alert(1)" not in page


def test_several_runs_are_compared_first_and_folded_after(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name) for name in ("a", "b")]
    results, first, *singles = sections_of(read_sources(paths))
    assert results.tables
    assert first.charts
    assert [section.title for section in singles] == ["a", "b"]
    assert all(section.is_folded for section in singles)
    names = [chart.name for section in (first, *singles) for chart in section.charts]
    assert len(names) == len(set(names))


def test_a_study_shows_one_run_of_each_arm_that_ran(tmp_path: Path) -> None:
    path = write_study(tmp_path / "comparison")
    _, _, *singles = sections_of(read_sources([path]))
    assert [section.title for section in singles] == ["comparison: sb, one run"]
    assert any(chart.name.endswith("timeline") for chart in singles[0].charts)


@pytest.mark.parametrize(
    ("name", "reason"), [("absent", "does not exist"), ("a-file", "is a file"), ("empty", "holds no run")]
)
def test_a_path_without_a_run_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "a-file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunDirError, match=reason):
        build_report([tmp_path / name], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_folder_of_runs_names_one_of_them(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "one", steps=2)
    with pytest.raises(RunDirError, match=r"e\.g\. .*runs/one"):
        build_report([tmp_path / "runs"], tmp_path / "report.html")


def test_a_page_in_no_folder_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steps=2)
    with pytest.raises(RunDirError, match="is not a folder"):
        build_report([path], tmp_path / "absent" / "page.html")


def test_the_command_says_where_the_page_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path / "run", steps=12)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args([str(path), "--no-figures"])) == 0
    assert f"report:  {path / 'report.html'}" in capsys.readouterr().out
    assert (path / "report.html").exists()
    assert not (path / "figures").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steps=2)
    (tmp_path / "page.html").mkdir()
    with pytest.raises(RunDirError, match="cannot be written"):
        build_report([path], tmp_path / "page.html", figures=False)


def test_a_run_ends_with_its_report(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sbpipe",
        "run",
        "--run-dir",
        str(tmp_path / "run"),
        *settings(mode="inline"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    assert f"report:        {tmp_path / 'run' / 'report.html'}" in done.stdout
    assert "Timeline of both roles" in (tmp_path / "run" / "report.html").read_text()


def test_a_run_that_failed_and_was_resumed_to_its_end_is_finished(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steps=6)
    with (path / "events-trainer.jsonl").open("a") as events:
        for event in ({"kind": "failed", "error": "disk"}, {"kind": "start"}, {"kind": "resumed", "step": 4}):
            events.write(json.dumps(stamped(2000.0, "trainer", **event)) + "\n")
    run = read_run(path)
    assert status_of(run) == "finished"
    assert [event["step"] for event in run.of("step")] == [0, 1, 2, 3]


def test_a_summary_from_before_the_last_start_is_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steps=6)
    with (path / "events-trainer.jsonl").open("a") as events:
        for kind in ("summary", "start"):
            events.write(json.dumps(stamped(2000.0, "trainer", kind)) + "\n")
    assert status_of(read_run(path)).startswith("no end recorded")


def test_runs_of_one_name_have_traces_of_their_own(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / folder / "run", steps=3)) for folder in ("a", "b")]
    names = [path.name for path in trace_paths(tmp_path / "report.html", runs)]
    assert names == ["trace-run-1.json", "trace-run-2.json"]


def test_an_evaluation_is_not_idle_time_of_the_step_after_it(tmp_path: Path) -> None:
    steps = [
        {"spans": {"evaluate": [10.0, 5.0]}},
        {"spans": {"evaluate": [30.0, 1.0], "checkpoint": [31.0, 1.0]}},
    ]
    assert apart_s(steps, 9.0, 20.0) == 5.0
    assert apart_s(steps, 12.0, 31.5) == 4.5
