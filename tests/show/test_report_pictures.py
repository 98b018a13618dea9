"""Pictures of several arms against slow references: bands of seeds, Pareto points, sweeps."""

import csv
import itertools
import statistics
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.written_studies import sync_sweep, write_run, write_study

from sbpipe.runs import read_run, read_study
from sbpipe.runs.study.arm_group import group_runs, group_study
from sbpipe.runs.study.pareto import frontier
from sbpipe.show.report.curves import band
from sbpipe.show.report.many import charts_of_many, tables_of_many
from sbpipe.show.report.sweep_chart import measures_of, place_of, sweep_chart

# --- bands ----------------------------------------------------------------------------------------


def slow_reading(curve: list[tuple[float, float]], x: float) -> float:
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if x0 <= x <= x1:
            return y0 + (x - x0) / (x1 - x0) * (y1 - y0)
    assert x > curve[-1][0], f"{x} is before the curve"
    return curve[-1][1]


CURVES = st.lists(
    st.lists(
        st.tuples(st.integers(0, 40), st.floats(0.01, 1)),
        min_size=2,
        max_size=8,
        unique_by=lambda point: point[0],
    ).map(sorted),
    min_size=1,
    max_size=4,
)


@settings(max_examples=80, deadline=None)
@given(CURVES)
def test_a_band_is_mean_lowest_and_highest_of_straight_lines_between_evaluations(
    curves: list[list[tuple[float, float]]],
) -> None:
    begin = max(curve[0][0] for curve in curves)
    rows = band(curves)
    assert [row["x"] for row in rows] == sorted({x for curve in curves for x, _ in curve if begin <= x})
    for row in rows:
        values = [slow_reading(curve, row["x"]) for curve in curves]
        assert [row["mean"], row["low"], row["high"]] == pytest.approx(
            [statistics.mean(values), min(values), max(values)]
        )


def test_a_mean_begins_where_all_seeds_were_measured_and_an_ended_run_keeps_its_error() -> None:
    rows = band([[(1, 0.9), (5, 0.1)], [(2, 0.8), (9, 0.2)]])
    assert [row["x"] for row in rows] == [2, 5, 9]
    assert rows[-1]["mean"] == pytest.approx((0.1 + 0.2) / 2)


def test_an_unfinished_run_is_drawn_dashed_and_in_no_mean(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / "a", [0.5, 0.2], seed=0), write_run(tmp_path / "b", [0.5, 0.4], seed=1)]
    dead = write_run(tmp_path / "dead", [0.9], seed=2, status=None)
    chart = charts_of_many([read_run(path) for path in [*paths, dead]], [])[0]
    lines, means = (layer["data"]["values"] for layer in chart.spec["layer"][1:3])
    assert means[-1]["mean"] == pytest.approx(30.0)
    assert means[-1]["n"] == 2
    assert {row["run"]: row["finished"] for row in lines} == {"a": True, "b": True, "dead": False}
    assert "dead: is unfinished: it is in no mean" in chart.notes


# --- Pareto ---------------------------------------------------------------------------------------

POINTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=25)


@settings(max_examples=300, deadline=None)
@given(POINTS)
def test_pareto_optimal_is_what_no_other_point_beats(points: list[tuple[float, float]]) -> None:
    slow = [
        not any(a <= time and b <= error and (a, b) != (time, error) for a, b in points)
        for time, error in points
    ]
    assert frontier(points) == slow


def test_pareto_shares_count_who_provides_the_optimal_points(tmp_path: Path) -> None:
    quick = write_run(tmp_path / "quick", [0.5, 0.4], pace_s=1.0, mode="inline")
    deep = write_run(tmp_path / "deep", [0.6, 0.1], pace_s=2.0, mode="lockstep")
    analysis = group_runs([read_run(quick), read_run(deep)]).analysis
    assert analysis["strategies"] == {"inline": pytest.approx(2 / 3), "lockstep": pytest.approx(1 / 3)}
    assert analysis["arms"]["inline"]["pareto_share"] == pytest.approx(2 / 3)


def test_only_optimal_points_are_filled_and_joined(tmp_path: Path) -> None:
    quick = write_run(tmp_path / "quick", [0.5, 0.4], pace_s=1.0, mode="inline")
    slow = write_run(tmp_path / "slow", [0.6, 0.45], pace_s=2.0, mode="lockstep")
    chart = next(
        chart for chart in charts_of_many([read_run(quick), read_run(slow)], []) if chart.name == "pareto"
    )
    optimal = {(row["arm"], row["error"]) for row in chart.spec["data"]["values"] if row["optimal"]}
    assert optimal == {("inline", 50.0), ("inline", 40.0)}
    assert chart.spec["layer"][0]["transform"] == [{"filter": "datum.optimal"}]


# --- sweeps ---------------------------------------------------------------------------------------


def test_a_sweep_draws_modes_as_lines_over_a_log2_axis(tmp_path: Path) -> None:
    chart = sweep_chart(group_study(read_study(sync_sweep(tmp_path))))
    panel = chart.spec["vconcat"][0]["hconcat"][0]
    assert panel["encoding"]["x"]["scale"]["base"] == 2
    assert panel["encoding"]["x"]["axis"]["values"] == [1, 2, 4, 8]
    means = panel["layer"][0]["data"]["values"]
    assert [(row["line"], row["x"], round(row["mean"], 6), row["n"]) for row in means if row["x"] == 8] == [
        ("pipelined", 8, 19.0, 2),
        ("fixed-lag", 8, 19.0, 2),
    ]
    assert means[0]["sd"] == pytest.approx(100 * statistics.stdev([0.11, 0.13]))


def test_a_line_breaks_where_not_every_seed_reached_the_target(tmp_path: Path) -> None:
    chart = sweep_chart(group_study(read_study(sync_sweep(tmp_path))))
    times = chart.spec["vconcat"][0]["hconcat"][1]["layer"][0]["data"]["values"]
    assert [(row["x"], row["n"], row["mean"] is None) for row in times if row["line"] == "pipelined"] == [
        (1, 2, False),
        (2, 2, False),
        (4, 1, True),
        (8, 0, True),
    ]


def test_the_table_of_a_sweep_has_the_means_of_results_csv(tmp_path: Path) -> None:
    path = sync_sweep(tmp_path)
    table = tables_of_many([], [read_study(path)])[0]
    with (path / "results.csv").open() as file:
        rows = [
            row for row in csv.DictReader(file) if (row["arm"], row["sync.interval"]) == ("fixed-lag", "4")
        ]
    row = next(row for row in table.rows if row[:2] == ["fixed-lag", "4"])
    stale = statistics.mean(float(cell["staleness.mean"]) for cell in rows)
    error = 100 * statistics.mean(float(cell["eval.error"]) for cell in rows)
    assert row[table.header.index("staleness")] == f"{stale:.2f}"
    assert row[table.header.index("test error")].startswith(f"{error:.2f}%")
    assert row[table.header.index("n")] == "2"


def test_swing_and_effective_sample_are_drawn_where_a_finished_cell_has_them(tmp_path: Path) -> None:
    def labels(name: str, **numbers: float | None) -> list[str]:
        cells = {
            f"lag-{lag}": {
                "arm": "a",
                "seed": 0,
                "swept": {"sync.lag": lag},
                "errors": [0.2],
                "numbers": numbers,
            }
            for lag in (1, 2)
        }
        study = read_study(write_study(tmp_path / name, "sweep", cells, swept=["sync.lag"]))
        return [measure.label for measure in measures_of(group_study(study))]

    older = labels("older")
    assert labels("newer", **{"selection.swing": 3.5, "selection.ess": None}) == [*older, "swing (1 = calm)"]
    assert (
        labels("both", **{"selection.swing": 3.5, "selection.ess": 0.5})[-1]
        == "effective sample size (0 to 1)"
    )


def test_a_swept_word_makes_bars_and_the_first_number_the_axis(tmp_path: Path) -> None:
    words = {
        name: {"arm": name, "seed": 0, "swept": {"optim.name": name}, "errors": [0.2]}
        for name in ("SGD", "Adam")
    }
    group = group_study(read_study(write_study(tmp_path / "words", "sweep", words, swept=["optim.name"])))
    assert sweep_chart(group).spec["vconcat"][0]["hconcat"][0]["layer"][0]["mark"]["type"] == "bar"
    both = {"a": {"arm": "a", "seed": 0, "swept": {"optim.name": "SGD", "sync.lag": 3}, "errors": [0.2]}}
    group = group_study(
        read_study(write_study(tmp_path / "both", "sweep", both, swept=["optim.name", "sync.lag"]))
    )
    assert vars(place_of(group.arms[0], group)) == {"key": "sync.lag", "x": 3, "line": "optim.name=SGD"}


def test_a_sweep_with_nothing_finished_gives_a_reason_and_a_table(tmp_path: Path) -> None:
    study = read_study(
        write_study(
            tmp_path,
            "sweep",
            {"a": {"arm": "a", "seed": 0, "swept": {"sync.interval": 1}}},
            swept=["sync.interval"],
        )
    )
    charts, tables = charts_of_many([], [study]), tables_of_many([], [study])
    assert charts[0].meaning == "No cell has finished."
    assert tables[0].rows[0][:3] == ["a", "1", "0"]
