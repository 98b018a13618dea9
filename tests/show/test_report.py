"""What a report says of a run: the pictures' numbers, the trace, what is missing, and which paths it
refuses.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.runs import HANG_S, settings
from support.synthetic_run import BEGAN, STEP_S, stamped, write_examples, write_run

from sbpipe.commands import report as command
from sbpipe.config import Config
from sbpipe.errors import RunDirError
from sbpipe.runs import Run, read_run
from sbpipe.runs.names import NUMBERS, STAGES
from sbpipe.show.charts import Chart, to_png, to_svg
from sbpipe.show.charts.render import PICTURE_WIDTH
from sbpipe.show.charts.theme import STAGE_COLOURS
from sbpipe.show.report.build import build_report, read_sources, sections_of, trace_paths
from sbpipe.show.report.examples import COLUMNS, captions_of, data_uri, example_charts, read_examples
from sbpipe.show.report.facts import (
    HEAD,
    fact_tables,
    lead_of_run,
    numbers_of,
    status_of,
    tiles_of,
    warnings_in,
)
from sbpipe.show.report.kept import keep_rates, never_kept_share, times_kept
from sbpipe.show.report.lanes import clock_shift, stage_spans
from sbpipe.show.report.loss import MOST_POINTS, loss_chart
from sbpipe.show.report.one import sections_of_one
from sbpipe.show.report.page import html_page
from sbpipe.show.report.section import Section
from sbpipe.show.report.table import Table
from sbpipe.show.report.thinning import stretches_by_weight, thin
from sbpipe.show.report.timeline import timeline_chart, typical_window
from sbpipe.show.report.trace import write_trace

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


def charts_of_one(run: Run) -> list[Chart]:
    """Every picture of a run that its files allow."""
    return [chart for section in sections_of_one(run) for chart in section.charts]


def test_thinning_keeps_the_ends_and_never_more_than_asked() -> None:
    assert thin(range(1000), 4) == [0, 333, 666, 999]
    assert thin([1, 2, 3], 5) == [1, 2, 3]
    assert thin([1, 2, 3], 1) == [3]


def test_stretches_hold_every_element_once() -> None:
    assert stretches_by_weight(range(10), [1] * 10, 4) == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]
    assert stretches_by_weight([1, 2], [1, 1], 5) == [[1], [2]]


def test_stretches_are_of_equal_weight() -> None:
    assert stretches_by_weight("abcdefg", [1, 1, 1, 1, 4, 4, 4], 4) == [list("abcd"), ["e"], ["f"], ["g"]]


# --- timeline and trace ---------------------------------------------------------------------------


def test_a_typical_window_avoids_the_warm_up_and_a_stall() -> None:
    begins = [5.0 * k for k in range(20)] + [100.0 + k for k in range(100)]
    begins = begins[:70] + [begin + 30.0 for begin in begins[70:]]
    first, last = typical_window(begins, 20)
    assert last - first == 20
    assert begins[last] - begins[first] == 20.0


def test_every_span_of_a_stage_is_a_bar_of_its_own(run: Run) -> None:
    bars = [bar for bar in stage_spans(run) if bar.task == "lease 5" and bar.stage == "score"]
    assert [round(bar.end - bar.begin, 6) for bar in bars] == [0.014, 0.014]
    assert {bar.lane for bar in bars} == {"selector 0000"}


def test_processor_time_is_in_no_lane(run: Run) -> None:
    assert "dispatch" not in {bar.stage for bar in stage_spans(run)}


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
    assert (
        write_trace(run, tmp_path / "trace.json")
        == f"{len(list(stage_spans(run))):,} stages of the whole run"
    )
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


def test_every_stage_with_a_length_on_the_clock_has_a_colour() -> None:
    assert {stage.name for stage in STAGES if stage.nature != "processor"} == set(STAGE_COLOURS)


def test_the_loss_of_a_long_run_is_a_mean_in_a_band_that_holds_every_step(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "long", steps=4 * MOST_POINTS, leave_out=("examples.npz",)))
    chart = loss_chart(run)
    assert chart is not None
    rows = chart.spec["data"]["values"]
    losses = [event["loss"] for event in run.of("step")]
    assert len(rows) == MOST_POINTS
    assert np.mean([row["loss"] for row in rows]) == pytest.approx(np.mean(losses))
    assert (min(row["low"] for row in rows), max(row["high"] for row in rows)) == (min(losses), max(losses))
    assert "300 of 1,200 steps" in chart.notes[0]


def test_the_keep_rate_of_a_class_is_that_of_the_whole_run() -> None:
    events = [
        {"class_considered": [10, 0, 30], "class_kept": [5, 0, 3]},
        {"class_considered": [30, 0, 10], "class_kept": [5, 0, 1]},
        {"class_considered": None, "class_kept": None},
    ]
    assert keep_rates(events) == {0: 0.25, 2: 0.1}


def test_examples_kept_very_often_share_the_last_bar() -> None:
    rows = times_kept([50, *[1] * 49, 1]).spec["data"]["values"]
    assert rows[0] == {"times": "0", "examples": 50, "share": 0.5}
    assert rows[-1] == {"times": "40+", "examples": 11, "share": 0.11}
    assert sum(row["examples"] for row in rows) == 100


def test_a_run_without_an_end_shows_its_last_progress(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "running", leave_out=SETTINGS_ONLY))
    assert status_of(run).startswith("no end recorded")
    assert numbers_of(run)["steps"] == 60
    assert {("steps", "60"), ("candidates", "5,760"), ("never kept", "30.0%")} <= set(tiles_of(run))
    facts = {row[0]: row[1] for row in fact_tables(run)[0].rows}
    assert (facts["swing"], facts["effective sample size"]) == ("1.50", "0.93")


def test_the_head_is_one_line_and_ten_numbers(run: Run) -> None:
    assert lead_of_run(run) == "finished · small_cnn on embedded · sb keeps 33.3 % · pipelined · seed 0"
    assert [label for label, _ in tiles_of(run)] == [*(NUMBERS[name].label for name in HEAD), "never kept"]
    assert len(tiles_of(run)) == 10


def test_staleness_and_fidelity_are_facts_with_a_meaning(run: Run) -> None:
    rows = {label: (value, meaning) for label, value, meaning in fact_tables(run)[0].rows}
    assert rows["staleness"][0] == "2.00 steps"
    assert rows["fidelity"][0] == "0.850"
    assert all(meaning for _, meaning in rows.values())
    assert "above 6" in rows["swing"][1]


def test_only_settings_that_are_not_at_their_default_are_listed(run: Run) -> None:
    settings_table = fact_tables(run)[1]
    assert ["data.examples", "100", str(Config().data.examples)] in settings_table.rows
    assert "selection.keep" in {row[0] for row in settings_table.rows}
    assert "mode" not in {row[0] for row in settings_table.rows}


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    path = write_run(tmp_path / "failed", leave_out=SETTINGS_ONLY)
    with (path / "events-trainer.jsonl").open("a") as file:
        file.write(json.dumps(stamped(BEGAN + 99, "trainer", "failed", error="loss is nan")) + "\n")
    assert status_of(read_run(path)) == "failed: loss is nan"


def test_of_many_warnings_the_head_shows_some_and_counts_the_others(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steps=6)
    with (path / "events-trainer.jsonl").open("a") as events:
        for k in range(100):
            events.write(json.dumps(stamped(2000.0, "trainer", "warning", text=f"storm {k}")) + "\n")
        events.write(json.dumps(stamped(2000.0, "trainer", "left_out", of="warning", count=70)) + "\n")
    notes = warnings_in(read_run(path))
    assert [note for note in notes if "storm" in note][-1] == "storm 99"
    assert "... 80 more warnings ..." in notes
    assert "70 more events of kind `warning` came, too many to be written." in notes


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
    side = PICTURE_WIDTH / COLUMNS - 5
    assert int((pixels == (255, 0, 0)).all(axis=1).sum()) == pytest.approx(7 * side * side, rel=0.03)
    assert to_svg(chart).count("data:image/png") == 7


def test_grey_examples_and_unknown_classes_can_be_shown(tmp_path: Path) -> None:
    write_examples(tmp_path / "examples.npz", channels=1)
    arrays = read_examples(tmp_path, [])
    arrays["easiest_targets"][:] = -1
    arrays["easiest_scores"][:] = np.nan
    assert captions_of("easiest", arrays)[1] == "true –\npredicted 1\nscore –"
    assert data_uri(arrays["easiest_images"][0]).startswith("data:image/png;base64,")


def test_damaged_examples_become_a_note(tmp_path: Path) -> None:
    (tmp_path / "examples.npz").write_bytes(b"PK\x03\x04 cut")
    notes: list[str] = []
    assert read_examples(tmp_path, notes) == {}
    assert "cannot be read" in notes[0]


# --- the page and its paths -----------------------------------------------------------------------


def test_a_whole_run_shows_what_a_reader_looks_at_and_no_more(run: Run) -> None:
    assert [chart.name for chart in charts_of_one(run)] == [
        "error-over-time",
        "loss",
        "test-loss",
        "time-breakdown",
        "timeline",
        "times-kept",
        "keep-rate-by-class",
        "score-distribution",
        "examples-easiest",
        "examples-hardest",
        "examples-never-kept",
    ]


def test_facts_and_settings_are_folded_below_the_pictures(run: Run) -> None:
    sections = sections_of_one(run)
    assert [section.name for section in sections if section.is_folded] == ["facts", "everything"]
    assert not any(section.is_folded for section in sections[:-2])
    assert sections[0].title == ""


def test_an_older_run_says_what_is_missing(tmp_path: Path) -> None:
    missing = ("scores", "spans", "examples.npz")
    sections = sections_of_one(read_run(write_run(tmp_path / "old", leave_out=missing)))
    notes = " ".join(note for section in sections for note in section.notes)
    for word in ("`scores`", "no spans", "examples.npz"):
        assert word in notes
    assert never_kept_share(read_run(tmp_path / "old")) is None


def test_an_error_measured_once_is_said_and_not_drawn(tmp_path: Path) -> None:
    path = write_run(tmp_path / "once", steps=6, leave_out=("examples.npz", "scores"))
    events = (path / "events-trainer.jsonl").read_text().splitlines()
    evals = [line for line in events if json.loads(line)["kind"] == "eval"]
    kept = [line for line in events if line not in evals[:-1]]
    (path / "events-trainer.jsonl").write_text("\n".join(kept) + "\n")
    chart = next(chart for chart in charts_of_one(read_run(path)) if chart.name == "error-over-time")
    assert chart.spec == {}
    assert "Measured once: once had 5.00 %" in chart.meaning
    page = build_report([path], path / "report.html").read_text()
    assert not (path / "figures" / "error-over-time.png").exists()
    assert "Measured once" in page
    assert 'data-spec="spec-error-over-time"' not in page


def test_a_cut_run_makes_a_report_that_says_so(tmp_path: Path) -> None:
    path = write_run(tmp_path / "cut", leave_out=SETTINGS_ONLY)
    events = path / "events-trainer.jsonl"
    events.write_bytes(events.read_bytes()[:-40])
    assert "the last line is cut" in build_report([path], path / "report.html", figures=False).read_text()


def test_a_report_leaves_page_figures_and_trace(tmp_path: Path) -> None:
    path = write_run(tmp_path / "small", steps=12, leave_out=("examples.npz", "scores"))
    page = build_report([path], path / "report.html").read_text()
    assert (path / "trace.json").exists()
    for name in ("timeline", "loss", "error-over-time"):
        assert (path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (path / "figures" / f"{name}.svg").read_text()
        assert f'href="figures/{name}.png"' in page


def test_words_of_a_run_cannot_break_out_of_the_page() -> None:
    evil = "</script><script>alert(1)</script>"
    table = Table(evil, [evil], [[evil]], evil)
    page = html_page(
        evil, evil, [Section("a", evil, tables=[table], tiles=[(evil, evil)], notes=[evil])], None, [evil]
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)
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
