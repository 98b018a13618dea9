"""Comparisons: the analysis by hand-made curves, the arms' file, and every comparison in the tree as a
plan.
"""

from pathlib import Path
from typing import Any

import pytest
from support.claims import comparison_of
from support.runs import sbpipe, settings

from sbpipe.config import resolve
from sbpipe.errors import ConfigError, UserError
from sbpipe.runs.curve import Point
from sbpipe.runs.study.analysis import cost
from sbpipe.runs.study.pareto import frontier, pareto_shares
from sbpipe.runs.study.spread import paired
from sbpipe.studies.comparison_plan import plan_comparison, weaknesses
from sbpipe.studies.conclusion import page_of
from sbpipe.studies.core_shares import refuse_other_threads, runs_alone
from sbpipe.studies.folder import State
from sbpipe.studies.outcome import Outcome, analyse, tables_of
from sbpipe.studies.plan import Plan
from sbpipe.studies.provenance import facts_of
from sbpipe.studies.result import Result

COMPARISONS = sorted((Path(__file__).parents[2] / "configs" / "compare").glob("*.toml"))
ARMS = """
seeds = 2
baseline = "full"
[price]
trainer = 3600
selector = 360
[[arms]]
name = "full"
mode = "inline"
selection.policy = "full"
[[arms]]
name = "piped"
strategy = "sb"
mode = "pipelined"
"""


def plan_of(folder: Path, text: str = ARMS, **flags: Any) -> Plan:
    return comparison_of(folder, text, **flags)


def results_of(plan: Plan) -> list[Result]:
    """Full ends at 10 % and 12 %, piped in half the time at 12 % and, with seed 1, fails."""
    curves = {
        "full_seed-0": [(10.0, 0.5), (20.0, 0.12), (30.0, 0.10)],
        "piped_seed-0": [(5.0, 0.5), (10.0, 0.13), (15.0, 0.12)],
        "full_seed-1": [(12.0, 0.5), (24.0, 0.14), (36.0, 0.12)],
    }
    results = []
    for cell in plan.cells:
        if cell.cell not in curves:
            results.append(Result(cell, State("failed", 0.0, error="no luck"), {}, [], {}))
            continue
        points = [Point(time_s, error) for time_s, error in curves[cell.cell]]
        summary = {"mode": "inline" if cell.arm == "full" else "pipelined", "eval.error": points[-1].error}
        results.append(Result(cell, State("finished", 0.0, process_s=40.0), summary, points, {}))
    return results


def test_a_point_beaten_in_time_and_error_is_not_pareto_optimal() -> None:
    assert frontier([(1.0, 0.5), (2.0, 0.5), (3.0, 0.2), (4.0, 0.3)]) == [True, False, True, False]
    assert frontier([(2.0, 0.1), (1.0, 0.1)]) == [False, True]


def test_equal_points_are_both_optimal() -> None:
    assert frontier([(1.0, 0.5), (1.0, 0.5), (1.0, 0.6)]) == [True, True, False]


def test_pareto_shares_add_up_and_losers_have_none() -> None:
    fast, slow = [Point(1.0, 0.4), Point(2.0, 0.3)], [Point(3.0, 0.35), Point(4.0, 0.1)]
    shares = pareto_shares([("fast", fast), ("slow", slow), ("worst", [Point(9.0, 0.9)])])
    assert shares == pytest.approx({"fast": 2 / 3, "slow": 1 / 3, "worst": 0.0})


def test_pairs_are_of_equal_seed_whatever_the_order() -> None:
    assert paired({2: 0.2, 0: 0.5}, {0: 0.4, 1: 9.0, 2: 0.1}) == [(0.2, 0.1), (0.5, 0.4)]


def test_a_price_bills_the_second_device() -> None:
    price = {"trainer": 2.0, "selector": 0.5}
    assert (cost(1800.0, 1, price), cost(1800.0, 2, price), cost(1800.0, 2, None)) == (1.0, 1.25, None)


def test_targets_come_from_the_baselines_mean_final_error(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    analysis = analyse(plan, results_of(plan))
    assert analysis["baseline_error"] == pytest.approx(0.11)
    assert [target["error"] for target in analysis["targets"]] == pytest.approx([0.121, 0.132, 0.154])


def test_an_arm_is_measured_against_the_baseline_of_the_same_seed(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    piped = analyse(plan, results_of(plan))["arms"]["piped"]
    assert (piped["n"], piped["failed"], piped["pairs"]) == (1, 1, 1)
    assert piped["error_difference_mean"] == pytest.approx(0.02)
    assert piped["error_difference_sd"] is None
    assert [there["speedup_mean"] for there in piped["targets"]] == pytest.approx([20 / 15, 2.0, 2.0])


def test_device_seconds_and_price_count_both_devices(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    arms = analyse(plan, results_of(plan))["arms"]
    assert (arms["full"]["device_s_mean"], arms["piped"]["device_s_mean"]) == (33.0, 30.0)
    assert (arms["full"]["cost_mean"], arms["piped"]["cost_mean"]) == pytest.approx((33.0, 15 * 1.1))


def test_a_target_that_no_seed_reached_has_no_time(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, f"targets = [0.5]\n{ARMS}")
    (there,) = analyse(plan, results_of(plan))["arms"]["full"]["targets"]
    assert (there["reached"], there["of"], there["time_mean"], there["speedup_mean"]) == (0, 2, None, None)


def test_nothing_finished_is_an_analysis_too(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    analysis = analyse(plan, [])
    assert analysis["baseline_error"] is None
    assert [table.as_text() for table in tables_of(plan, analysis)]


def test_losing_and_failed_arms_are_in_every_table(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    results = results_of(plan)
    *tables, pareto = tables_of(plan, analyse(plan, results))
    assert all([row[0] for row in table.rows] == ["full", "piped"] for table in tables)
    assert [row[0] for row in pareto.rows] == ["full", "sb"]
    page = page_of(Outcome(plan, results, analyse(plan, results)))
    assert "n = 2 (seeds 0, 1); 3 of 4 cells finished" in page
    assert "| piped | 1 (1 failed) | 12.00% | +2.00 |" in page


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds = 2", "names no arms"),
        (
            ARMS.replace('baseline = "full"', 'baseline = "fool"'),
            "baseline = 'fool': is not the name of an arm. The arms are full, piped",
        ),
        (ARMS.replace("selector = 360", ""), "price = .*: must name trainer and selector"),
        (ARMS.replace("selector = 360", "selector = -1"), r"price\.selector = -1: is not a price"),
        (ARMS.replace("seeds = 2", "seeds = 0"), "seeds = 0: leaves nothing to run"),
        (f"{ARMS}schedule.name = 'constant'", "rate of arm 'piped' never decays"),
        (f"targets = []\n{ARMS}", "not a list of factors"),
        ("[[", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(tmp_path, text)


def test_a_wrong_arm_is_named_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cell 'piped seed 0': sync\.lagg = 1: unknown key"):
        plan_of(tmp_path, f"{ARMS}sync.lagg = 1")


def test_what_weakens_a_comparison_is_said(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, settings={"schedule.name": "constant", "eval.every": 0.0}, seeds=[4])
    assert [text.partition(":")[0] for text in weaknesses(plan)] == [
        "no arm's learning rate decays",
        "one seed",
        "eval.every = 0",
    ]


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.name)
def test_every_comparison_in_the_tree_is_a_plan_that_runs_seed_by_seed(path: Path) -> None:
    plan = plan_comparison(path, settings={}, seeds=[0, 1])
    per_seed = len(plan.cells) // 2
    assert [cell.seed for cell in plan.cells] == [0] * per_seed + [1] * per_seed
    assert plan.tasks or per_seed == len(plan.arms)
    assert plan.baseline == {"precision": "fp32", "delay": "random", "ablation": "random"}.get(
        path.stem, "full"
    )


def test_what_a_user_gets_runs_alone_and_for_one_task_beside_what_the_clock_says() -> None:
    plan = plan_comparison(next(path for path in COMPARISONS if path.stem == "delay"), settings={}, seeds=[0])
    assert len(plan.cells) == 54
    alone = [cell for cell in plan.cells if runs_alone(resolve(cell.settings))]
    assert [(cell.arm, cell.task) for cell in alone] == [("steady pipelined 8", "fashion_mnist")]
    refuse_other_threads([(cell.label, resolve(cell.settings)) for cell in plan.cells], jobs=4, num_cores=16)


def finished_in(plan: Plan, *cells: tuple[State, dict[str, Any]]) -> list[Result]:
    return [
        Result(cell, state, {}, [], environment)
        for cell, (state, environment) in zip(plan.cells, cells, strict=False)
    ]


@pytest.mark.parametrize(
    ("commits", "said", "is_mixed"),
    [
        (["a", "a"], ["a"], False),
        (["a", "b"], ["a", "b"], True),
        (["a", None, None], ["a", "unknown (2 cells)"], True),
        ([None], ["unknown (1 cell)"], False),
    ],
)
def test_cells_without_a_commit_are_another_version(
    tmp_path: Path, commits: list[str | None], said: list[str], is_mixed: bool
) -> None:
    plan = plan_of(tmp_path)
    facts = facts_of(
        plan, finished_in(plan, *((State("finished", 0.0), {"git_commit": commit}) for commit in commits))
    )
    assert [fact for fact in facts if fact.startswith("commit")] == [f"commit: {text}" for text in said]
    assert any("different versions" in fact for fact in facts) == is_mixed


@pytest.mark.parametrize(
    ("states", "is_busy"),
    [
        ([State("finished", 0.0, load=99.0)], True),
        ([State("finished", 0.0, load=99.0, beside=1)], False),
        ([State("finished", 0.0, ended=60.0, load=0.0, beside=1), State("finished", 61.0, load=99.0)], False),
        ([State("finished", 0.0, ended=60.0, load=0.0, beside=1), State("finished", 900.0, load=99.0)], True),
        ([State("finished", 0.0, ended=60.0, load=0.0), State("finished", 61.0, load=99.0)], True),
    ],
)
def test_the_load_of_cells_side_by_side_is_the_studys_own(
    tmp_path: Path, states: list[State], is_busy: bool
) -> None:
    plan = plan_of(tmp_path)
    facts = facts_of(plan, finished_in(plan, *((state, {}) for state in states)))
    assert any("busy with other things" in fact for fact in facts) == is_busy


def test_a_comparison_of_real_runs_ends_with_its_tables(tmp_path: Path) -> None:
    arms = '[[arms]]\nname = "full"\nselection.policy = "full"\n[[arms]]\nname = "chosen"\n'
    (tmp_path / "arms.toml").write_text(f'{arms}[base]\nmode = "inline"')
    done = sbpipe(
        "compare",
        str(tmp_path / "arms.toml"),
        "--seeds",
        "1",
        *settings(),
        "--out",
        str(tmp_path / "out"),
        "--no-report",
    )
    assert done.returncode == 0, done.stderr
    assert "time to target" in done.stdout
    assert "chosen" in (tmp_path / "out" / "results.md").read_text()
