"""The paper's experiments: their files as plans, their claims on made-up results, and one tiny comparison
from the command to the page.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.claims import CONFIGS, TINY, comparison, comparison_text, curves, of_arm, verdicts
from support.runs import sbpipe

from sbpipe.config import ModelConfig, resolve
from sbpipe.errors import ConfigError, DataError, UserError
from sbpipe.models import build_model
from sbpipe.runs.curve import Point
from sbpipe.studies.reproduce import results_page as page
from sbpipe.studies.reproduce.experiment import Comparison
from sbpipe.studies.reproduce.experiments import (
    architectures,
    asymmetry,
    dropping,
    score_reuse,
    selectivity,
    similarity,
    speed,
    wrong_labels,
)
from sbpipe.studies.reproduce.findings import (
    FAILED,
    HELD,
    Arms,
    Finding,
    Tasks,
    between,
    judged,
    less,
    lower,
    overall,
    sooner,
)
from sbpipe.studies.reproduce.gradients import cosine, gradient, parts, same_sign
from sbpipe.studies.reproduce.pass_times import backward_over_forward
from sbpipe.studies.reproduce.registry import EXPERIMENTS, named
from sbpipe.studies.reproduce.runner import configs_folder, plan_tasks, refuse_missing_data
from sbpipe.studies.sweep_plan import plan_sweep

COMPARISONS = [
    *sorted((CONFIGS / "cpu").glob("*.toml")),
    *(p for p in sorted((CONFIGS / "paper").glob("*.toml")) if p.stem != "selectivity"),
]
OVERLAP = "not decided: spreads overlap"


# --- the files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_comparison_is_a_plan_of_one_device_whose_models_can_be_built(path: Path) -> None:
    plan = comparison(path)
    configs = [resolve(cell.settings) for cell in plan.cells]
    assert path.read_text().startswith("# ")
    assert plan.baseline == "full"
    assert {config.mode for config in configs} == {"inline"}
    for name, options in {
        (c.model.name, json.dumps(c.model.options)) for c in configs if path.parent.name == "cpu"
    }:
        build_model(ModelConfig(name, json.loads(options)), num_classes=10, input_shape=(3, 32, 32), seed=0)


@pytest.mark.parametrize(
    ("name", "cutout", "keep", "keep_kath18", "epochs", "drops", "accelerated", "gamma"),
    [
        ("cifar10", 16, 0.33, 0.33, 200, (60, 120, 160), (48, 96, 128), 0.2),
        ("cifar100", 8, 0.5, 0.5, 200, (60, 120), (48, 96), 0.1),
        ("svhn", 20, 0.25, 0.33, 160, (60, 120), (48, 96), 0.1),
    ],
)
def test_the_data_sets_are_trained_as_section_5_1_says(
    name: str,
    cutout: int,
    keep: float,
    keep_kath18: float,
    epochs: int,
    drops: tuple[int, ...],
    accelerated: tuple[int, ...],
    gamma: float,
) -> None:
    plan = comparison(CONFIGS / "paper" / f"{name}.toml")
    assert plan.arms == [f"{arm}{way}" for way in ("", " accelerated") for arm in ("full", "sb", "kath18")]
    for arm in plan.arms:
        config = of_arm(plan, arm)
        assert (config.model.name, config.train.batch_size, config.view.cutout) == (
            "wide_resnet",
            128,
            cutout,
        )
        assert (config.optim.lr, config.optim.weight_decay, config.schedule.gamma) == (0.1, 5e-4, gamma)
        expected = accelerated if arm.endswith("accelerated") else drops
        assert tuple(round(share * config.train.epochs) for share in config.schedule.milestones) == expected
        assert config.train.epochs == epochs
        assert config.selection.policy == arm.split()[0]
    assert of_arm(plan, "sb").selection.keep == keep
    assert of_arm(plan, "kath18 accelerated").selection.keep == keep_kath18


def test_the_sensitivity_analyses_are_those_of_the_appendix() -> None:
    plan = comparison(CONFIGS / "paper" / "sensitivity.toml")
    models = {
        "resnet18": "resnet18_cifar",
        "densenet": "densenet_cifar",
        "mobilenet_v2": "mobilenet_v2_cifar",
    }
    for task, model in models.items():
        config = of_arm(plan, "sb", task)
        assert (config.model.name, config.model.options, config.schedule.name, config.optim.lr) == (
            model,
            {},
            "constant",
            0.1,
        )
    keeps = {
        task: of_arm(plan, "sb", f"{task} static").selection.keep for task in ("cifar10", "cifar100", "svhn")
    }
    cutouts = {task: of_arm(plan, "full", f"{task} static").view.cutout for task in keeps}
    assert keeps == {"cifar10": 0.33, "cifar100": 0.5, "svhn": 0.25}
    assert cutouts == {"cifar10": 16, "cifar100": 8, "svhn": 20}
    flipped = {task: of_arm(plan, "sb", task).data for task in plan.tasks if task.startswith("flipped")}
    assert {task: data.label_noise for task, data in flipped.items()} == {
        "flipped 1%": 0.01,
        "flipped 10%": 0.1,
        "flipped 20%": 0.2,
    }
    assert {data.name for data in flipped.values()} == {"cifar10"}


def test_the_sweep_of_shares_has_traditional_at_a_share_of_one() -> None:
    plan = plan_sweep(CONFIGS / "paper" / "selectivity.toml", settings={}, grid={}, modes=None, seeds=None)
    first = resolve(plan.cells[0].settings)
    assert (first.selection.policy, first.selection.keep) == ("random", 1.0)
    assert {resolve(cell.settings).selection.keep for cell in plan.cells} >= {0.65, 0.5, 0.33, 0.25, 0.2}


@pytest.mark.parametrize(
    "name", [name for name, one in EXPERIMENTS.items() if isinstance(one.how, Comparison)]
)
def test_every_comparison_of_the_list_finds_its_tasks_and_judges_its_arms(name: str) -> None:
    how = EXPERIMENTS[name].how
    assert isinstance(how, Comparison)
    for quick in (False, True):
        plans = plan_tasks(how, CONFIGS / "cpu", quick=quick, seeds=None)
        configs = [resolve(cell.settings) for plan in plans.values() for cell in plan.cells]
        assert not quick or {config.data.name for config in configs} == {"embedded"}
        assert all(
            len(plan.seeds) == (2 if quick else 3) and plan.tasks == [task] for task, plan in plans.items()
        )
        findings = how.judge(
            {task: {arm: curves(0.1, 0.11) for arm in plan.arms} for task, plan in plans.items()}
        )
        assert findings
        assert HELD not in verdicts(findings) or name in (
            "fig11",
            "predicted",
            "fig12",
            "static",
            "dropping",
            "diet",
        ), "equal arms show no difference"


def test_the_scaled_schedules_drop_at_the_paper_s_shares_of_a_run() -> None:
    plan, paper = comparison(CONFIGS / "cpu" / "speed.toml"), comparison(CONFIGS / "paper" / "cifar10.toml")
    for task, arm in (("cifar10", "sb"), ("cifar10 accelerated", "sb accelerated")):
        assert of_arm(plan, "sb", task).schedule == of_arm(paper, arm).schedule


def test_wrong_labels_are_all_that_figure_12_adds_to_fashion_mnist() -> None:
    plan, clean = comparison(CONFIGS / "cpu" / "noise.toml"), comparison(CONFIGS / "cpu" / "speed.toml")
    for share in (0.01, 0.1, 0.2):
        noisy, right = of_arm(plan, "sb", f"fashion_mnist {share:.0%}"), of_arm(clean, "sb", "fashion_mnist")
        assert (noisy.data.name, noisy.data.path, noisy.data.label_noise) == (
            right.data.name,
            right.data.path,
            share,
        )
        assert replace(noisy, data=right.data) == right


# --- verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("margins", "verdict"),
    [
        ([1.0, 1.2, 0.9], HELD),
        ([-1.0, -1.2, -0.9], FAILED),
        ([1.0, -0.9, 0.2], OVERLAP),
        ([0.0, 0.0], OVERLAP),
        ([1.0], "not decided: one run has no spread"),
        ([], "not decided: nothing was measured"),
    ],
)
def test_a_verdict_asks_for_more_than_one_standard_deviation(margins: list[float], verdict: str) -> None:
    assert judged(margins) == verdict


def test_one_part_that_failed_decides_a_claim_before_one_that_is_open() -> None:
    held, failed, open_ = (Finding("", "", verdict) for verdict in (HELD, FAILED, OVERLAP))
    assert overall([held, held]) == HELD
    assert overall([held, open_]).startswith("not decided: 1 of 2 parts held")
    assert overall([held, open_, failed]).startswith("did not hold: 1 of 3 parts held")
    assert overall([]).startswith("not decided")


def test_an_error_is_lower_seed_by_seed_and_comparable_within_a_factor() -> None:
    ours, theirs = curves(0.105, 0.125), curves(0.10, 0.12)
    assert lower("", theirs, ours).verdict == HELD
    assert lower("", ours, theirs).verdict == FAILED
    assert lower("", ours, theirs, factor=1.1).verdict == HELD
    assert "difference +0.50 ±0.00 points, n = 2" in lower("", ours, theirs).measured


def test_time_to_a_target_counts_pairs_and_a_target_never_reached_is_lost() -> None:
    fast, slow = curves(0.1, 0.1, pace_s=1.0), curves(0.1, 0.1, pace_s=2.0)
    assert sooner("", fast, slow, 0.14).verdict == HELD
    assert "2.00x" in sooner("", fast, slow, 0.14).measured
    assert sooner("", slow, fast, 0.14).verdict == FAILED
    assert sooner("", curves(0.3, 0.3), fast, 0.14).verdict == FAILED
    assert sooner("", curves(0.1, 0.3), fast, 0.14).verdict == "not decided: not all runs reached it"
    assert sooner("", fast, fast, None).verdict.startswith("not decided")
    assert sooner("", {}, {}, 0.1).verdict.startswith("not decided")


def test_a_ratio_lies_within_bounds_with_its_whole_spread_or_is_not_decided() -> None:
    assert between("", [1.9, 2.1], 1.5, 2.5).verdict == HELD
    assert between("", [2.3, 2.9], 1.5, 2.5).verdict == OVERLAP
    assert between("", [2.9, 3.0], 1.5, 2.5).verdict == FAILED
    assert between("", [2.0], 1.5, 2.5).verdict.startswith("not decided")


# --- claims on made-up results --------------------------------------------------------------------


def arms_of(**arms: dict[int | None, list[Point]]) -> Arms:
    return arms


def test_table_1_asks_every_target_and_kath18() -> None:
    quick = arms_of(
        full=curves(0.1, 0.1, pace_s=2.0), sb=curves(0.1, 0.1), kath18=curves(0.1, 0.1, pace_s=1.5)
    )
    assert verdicts(speed.time_to_target({"a": quick})) == [HELD] * 4
    worse = quick | {"kath18": curves(0.1, 0.1, pace_s=0.5)}
    assert verdicts(speed.time_to_target({"a": worse})) == [HELD, HELD, HELD, FAILED]


def test_pareto_points_are_counted_over_both_schedules_of_a_data_set() -> None:
    ahead = arms_of(
        full=curves(0.1, 0.1, pace_s=3.0), sb=curves(0.09, 0.08), kath18=curves(0.1, 0.1, pace_s=2.0)
    )
    (finding,) = speed.pareto({"a": ahead, "a accelerated": ahead})
    assert finding.verdict == HELD
    assert "n = 2 seeds" in finding.measured
    behind = ahead | {"sb": curves(0.3, 0.3, pace_s=5.0)}
    assert verdicts(speed.pareto({"a": behind, "a accelerated": behind})) == [FAILED]


def test_a_static_rate_asks_for_a_comparable_final_error_too() -> None:
    worse = arms_of(full=curves(0.1, 0.1, pace_s=2.0), sb=curves(0.2, 0.2))
    assert verdicts(speed.same_trends({"a": worse}))[-1] == FAILED


def test_selectivity_trades_speed_for_error() -> None:
    paces = {0.2: 1.0, 0.33: 1.2, 0.5: 1.4, 0.65: 1.6}
    arms = {
        f"sb {keep:g}": curves(0.12 - keep / 50, 0.12 - keep / 50, pace_s=pace)
        for keep, pace in paces.items()
    }
    tasks: Tasks = {"a": arms | {"full": curves(0.1, 0.1, pace_s=2.0)}}
    assert verdicts(selectivity.claim(tasks)) == [HELD] * 6
    swapped = {"a": dict(tasks["a"]) | {"sb 0.2": arms["sb 0.65"], "sb 0.65": arms["sb 0.2"]}}
    assert verdicts(selectivity.claim(swapped))[-2:] == [FAILED, FAILED]


def test_remembered_scores_are_sooner_and_end_alike() -> None:
    stale = {f"stale-sb {epochs}": curves(0.1, 0.1, pace_s=1.0) for epochs in score_reuse.REUSES}
    tasks: Tasks = {"a": stale | {"full": curves(0.1, 0.1, pace_s=3.0), "sb": curves(0.1, 0.1, pace_s=2.0)}}
    assert verdicts(score_reuse.claim(tasks)) == [HELD] * 4
    worse = {"a": dict(tasks["a"]) | {"stale-sb 3": curves(0.3, 0.3, pace_s=1.0)}}
    assert verdicts(score_reuse.claim(worse)) == [FAILED, HELD, FAILED, HELD]


def test_predictors_may_come_near_the_last_score_and_not_outdo_it() -> None:
    arms = {f"{name} 3": curves(0.1, 0.1, pace_s=1.0) for name in ("stale-sb", *score_reuse.PREDICTORS)}
    tasks: Tasks = {"a": arms | {"full": curves(0.1, 0.1, pace_s=3.0)}}
    assert verdicts(score_reuse.not_outperformed(tasks)) == [HELD] * 4
    faster = {"a": dict(tasks["a"]) | {"average 3": curves(0.1, 0.1, pace_s=0.8)}}
    assert verdicts(score_reuse.not_outperformed(faster)) == [FAILED, HELD, HELD, HELD]
    better = {"a": dict(tasks["a"]) | {"gaussian 3": curves(0.08, 0.08, pace_s=1.0)}}
    assert verdicts(score_reuse.not_outperformed(better))[2:] == [HELD, FAILED]


def test_noise_is_borne_while_modest_and_hurts_at_20_percent() -> None:
    ends = {"1%": (0.10, 0.10), "10%": (0.12, 0.12), "20%": (0.15, 0.20)}
    tasks = {
        f"wrong {share}": arms_of(
            full=curves(full, full + 0.01, pace_s=3.0),
            sb=curves(sb, sb + 0.01),
            random=curves(sb + 0.02, sb + 0.03),
        )
        | {"sb guarded": curves(sb - 0.01, sb)}
        for share, (full, sb) in ends.items()
    }
    found = wrong_labels.claim(tasks)
    assert [finding.what.partition(" ")[0] for finding in found] == ["1%"] * 4 + ["10%"] * 4 + ["20%"] * 4 + [
        "from"
    ]
    assert verdicts(found) == [HELD] * 13
    assert "5.00" in found[-1].measured
    robust = {task: arms | {"sb": arms["full"]} for task, arms in tasks.items()}
    assert verdicts(wrong_labels.claim(robust))[-1] == OVERLAP


def test_every_architecture_is_judged_by_itself() -> None:
    good, bad = (
        arms_of(full=curves(0.1, 0.1, pace_s=2.0), sb=curves(0.1, 0.1)),
        arms_of(full=curves(0.1, 0.1), sb=curves(0.5, 0.5)),
    )
    assert verdicts(architectures.claim({"a": good, "b": bad})) == [HELD, HELD, FAILED, FAILED]


def test_dropping_compares_accuracy_and_pace_without_start_up() -> None:
    arms = {
        "full": curves(0.1, 0.1, pace_s=4.0),
        "random 0.5": curves(0.1, 0.1, pace_s=2.0),
        "sb 0.5": curves(0.1, 0.1, pace_s=3.0),
        "random 0.25": curves(0.102, 0.102),
        "random 0.1": curves(0.3, 0.3),
        "sb 0.1": curves(0.2, 0.2),
    }
    found = dropping.claim({"a": arms})
    assert verdicts(found) == [HELD] * 6
    assert "30.000 ±0.000 against 40.000" in found[3].measured
    assert (
        verdicts(dropping.claim({"a": arms | {"sb 0.1": arms["random 0.1"], "random 0.1": arms["sb 0.1"]}}))[
            2
        ]
        == FAILED
    )


def test_similarity_is_judged_by_pairs_of_batches() -> None:
    near, far = [0.9, 0.92, 0.91], [0.5, 0.55, 0.52]
    numbers = {
        similarity.key(m, s, c): near if c == "high" else far
        for m in similarity.MEASURES
        for s in similarity.SHARES
        for c in ("high", "random")
    }
    assert verdicts(similarity.claim(numbers)) == [HELD] * 7
    swapped = {name: far if "high" in name else near for name in numbers}
    assert verdicts(similarity.claim(swapped)) == [FAILED] * 7


def test_asymmetry_is_about_twice_for_every_model() -> None:
    assert verdicts(asymmetry.claim({"a": [2.0, 2.1], "b": [1.0, 1.1]})) == [HELD, FAILED]
    assert less("", [1.0, 1.0], [2.0, 2.1]).verdict == HELD


# --- what is measured -----------------------------------------------------------------------------


def test_a_part_of_a_batch_is_its_highest_losses_or_as_many_at_random() -> None:
    losses = torch.tensor([0.1, 3.0, 0.2, 2.0, 0.3, 0.4, 0.5, 0.6])
    chosen = parts(losses, 0.25, np.random.default_rng(0))
    assert sorted(chosen["high"].tolist()) == [1, 3]
    assert len(set(chosen["random"].tolist())) == 2


def test_the_gradient_of_a_linear_model_is_what_the_hand_says() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    inputs, targets = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.zeros(2)
    whole, losses = gradient(model, lambda outputs, _: outputs[:, 0], inputs, targets)
    assert whole.tolist() == [0.5, 1.0]
    assert len(losses) == 2
    assert cosine(whole, torch.tensor([1.0, 2.0])) == pytest.approx(1.0)
    assert cosine(whole, torch.tensor([-2.0, 1.0])) == pytest.approx(0.0)
    assert same_sign(whole, torch.tensor([-2.0, 1.0])) == 0.5


def test_the_ratio_of_passes_has_a_number_per_round() -> None:
    ratios = backward_over_forward("small_cnn", {"width": 4}, rounds=3, batch_size=4)
    assert len(ratios) == 3
    assert min(ratios) > 0


# --- the command ----------------------------------------------------------------------------------

FULL_AND_SB = {"full": {"selection.policy": "full"}, "sb": {"selection.policy": "sb"}}
QUICK = comparison_text(
    2,
    TINY | {"train.steps": 4, "eval.every": 0.1, "checkpoint.every": 0, "train.threads": 1},
    FULL_AND_SB,
    {"embedded accelerated": {}},
)


def test_the_list_names_every_experiment_and_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; sys.argv = ['sbpipe', 'reproduce']\nfrom sbpipe.cli import main\ntry: main()\nexcept "
        "SystemExit: pass\n"
    )
    code += (
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules, 'the list imported a heavy "
        "library'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for experiment in EXPERIMENTS.values():
        assert experiment.name in done.stdout
        assert experiment.claim in done.stdout


def test_a_comparison_runs_from_the_command_to_the_page_and_is_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "speed.toml").write_text(QUICK)
    command = (
        "reproduce",
        "fig17",
        "--quick",
        "--seeds",
        "1",
        "--configs",
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
    )
    done = sbpipe(*command)
    assert done.returncode == 0, done.stderr
    assert "fig17 (quick): Figure 17" in done.stdout
    (entry,) = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (entry["name"], entry["is_quick"], len(entry["findings"])) == ("fig17", True, 3)
    assert entry["verdict"] in (tmp_path / "out" / "results.md").read_text()
    state = (
        tmp_path
        / "out"
        / "speed"
        / "embedded-accelerated"
        / "cells"
        / "sb_task-embedded-accelerated_seed-0.json"
    )
    before = state.read_text()
    assert sbpipe(*command).returncode == 0
    assert state.read_text() == before
    assert len(page.read(tmp_path / "out")) == 1


def test_an_outcome_stands_beside_those_of_other_experiments(tmp_path: Path) -> None:
    finding = Finding("a | part", "1.00 ±0.10, n = 2", FAILED)
    for name in ("fig5", "fig18", "fig5"):
        page.write(
            tmp_path,
            page.entry_of(EXPERIMENTS[name], [finding], ["a fact", "a fact"], [tmp_path], quick=True),
        )
    entries = page.read(tmp_path)
    assert [entry.name for entry in entries] == ["fig18", "fig5"]
    assert entries[0].facts == ["a fact"]
    assert "did not hold" in page.as_text(entries[0])
    written = (tmp_path / page.PAGE).read_text()
    assert "a \\| part" in written
    overview = [line for line in written.splitlines() if line.startswith("| fig")]
    assert [line.split(":")[0] for line in overview] == ["| fig18 (quick)", "| fig5 (quick)"], (
        "an overview stands before the details"
    )
    assert all(EXPERIMENTS[entry.name].claim in written.partition("## ")[0] for entry in entries)
    assert page.as_line(entries[1]) == "fig5      did not hold: 0 of 1 parts held, 1 did not"


def test_mistakes_are_named_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fig55.*the nearest is fig5"):
        named(["fig55"])
    assert [one.name for one in named(["fig18", "fig5", "fig18"])] == ["fig18", "fig5"]
    assert len(named(["all"])) == len(EXPERIMENTS)
    with pytest.raises(UserError, match=r"there is no folder .*--configs"):
        configs_folder(tmp_path / "none")
    how = EXPERIMENTS["fig13"].how
    assert isinstance(how, Comparison)
    plans = plan_tasks(how, CONFIGS / "cpu", quick=False, seeds=[0])
    plan = plans["cifar10"]
    elsewhere = [
        replace(cell, settings=cell.settings | {"data.path": str(tmp_path / "x.npz")}) for cell in plan.cells
    ]
    with pytest.raises(DataError, match=r"x\.npz.*--quick"):
        refuse_missing_data([replace(plan, cells=elsewhere)])
    (tmp_path / "selectivity.toml").write_text(QUICK)
    with pytest.raises(UserError, match="has no task 'cifar10', it has embedded accelerated"):
        plan_tasks(how, tmp_path, quick=False, seeds=None)
