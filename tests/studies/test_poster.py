"""The experiments of the poster on Diet Selective-Backprop: how they are scored, what they measure, their
claims on made-up results.
"""

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.claims import CONFIGS, TINY, comparison, comparison_text, curves, of_arm, verdicts

from sbpipe.cli import build_parser
from sbpipe.commands import reproduce as command
from sbpipe.commands.settings import resolve_or_print
from sbpipe.errors import ConfigError, DataError
from sbpipe.studies.rating.make import recipe_of
from sbpipe.studies.reproduce import lowest_rated as lowest
from sbpipe.studies.reproduce.experiment import Comparison, Scores
from sbpipe.studies.reproduce.experiments import diet, overlap
from sbpipe.studies.reproduce.findings import FAILED, HELD
from sbpipe.studies.reproduce.pruning_scores import files_of, prepare
from sbpipe.studies.reproduce.registry import EXPERIMENTS

# --- claims on made-up results --------------------------------------------------------------------


def test_diet_compares_errors_with_el2n_and_counts_the_shorter_epoch_of_what_is_left() -> None:
    arms = {
        "full": curves(0.1, 0.1, pace_s=4.0),
        "sb 0.5": curves(0.1, 0.1, pace_s=3.6),
        "random 0.5": curves(0.1, 0.1, pace_s=2.0),
        "random 0.25": curves(0.1, 0.1, pace_s=1.0),
        "el2n 0.75": curves(0.105, 0.105, pace_s=4.0),
        "diet-sb 0.5": curves(0.106, 0.106, pace_s=4.4),
        "diet-sb 0.375": curves(0.107, 0.107, pace_s=3.6),
    }
    found = diet.claim({"a": arms})
    assert verdicts(found) == [HELD] * 14
    assert "30.000 ±0.000 against 40.000" in found[8].measured
    worse = diet.claim({"a": arms | {"diet-sb 0.5": curves(0.2, 0.2, pace_s=5.0)}})
    assert [k for k, finding in enumerate(worse) if finding.verdict == FAILED] == [3, 4, 11]
    better = diet.claim(
        {"a": arms | {"el2n 0.75": curves(0.08, 0.08), "diet-sb 0.375": curves(0.07, 0.07, pace_s=3.6)}}
    )
    assert [finding.what.partition(",")[0] for finding in better if finding.verdict == FAILED] == [
        "a: removing a quarter for good has a stronger one",
        "a: diet-sb 0.5 sacrifices nothing on top of EL2N",
        "a: diet-sb 0.375 is limited by EL2N",
        "a: diet-sb 0.375 takes less time per epoch than el2n 0.75",
    ]


def test_overlaps_are_judged_against_chance_and_told_beside_those_of_one_architecture() -> None:
    def numbers(across: float, within: float, least_used: float) -> dict[str, list[float]]:
        pairs = {overlap.ACROSS: across, overlap.WITHIN: within, overlap.LEAST_USED: least_used}
        return {
            overlap.key(pair, s): [s + above, s + above + 0.01]
            for s in overlap.SHARES
            for pair, above in pairs.items()
        }

    assert verdicts(overlap.claim(numbers(0.2, 0.2, 0.1))) == [HELD] * 8
    findings = overlap.claim(numbers(0.1, 0.2, -0.1))
    assert verdicts(findings) == [HELD, FAILED] * 4
    assert "two ensembles of small_cnn have 0.305 ±0.007 in common" in findings[0].measured


# --- what is measured -----------------------------------------------------------------------------


def test_the_lowest_examples_are_counted_and_ties_at_the_edge_share_the_places_left() -> None:
    assert lowest.lowest(np.array([0.4, 0.1, 0.3, 0.2]), 0.5).tolist() == [0.0, 1.0, 0.0, 1.0]
    assert lowest.lowest(np.array([0, 1, 1, 2]), 0.5).tolist() == [1.0, 0.5, 0.5, 0.0]
    scores = np.array([0.1, 0.2, 0.3, 0.4])
    assert lowest.overlap(scores, 2 * scores, 0.5) == 1.0
    assert lowest.overlap(scores, -scores, 0.5) == 0.0
    assert lowest.overlap(scores, -scores, 0.75) == pytest.approx(2 / 3)
    assert lowest.overlap(np.array([0, 0, 0, 5]), scores, 0.25) == pytest.approx(1 / 3)
    assert lowest.overlap(np.zeros(4), scores, 0.5) == 0.5, "who knows nothing is at chance"
    with pytest.raises(ValueError, match="not of the same examples"):
        lowest.overlap(scores, scores[:3], 0.5)


def test_a_seed_compares_its_own_ensembles_and_run_and_one_architecture_with_another_seed_s() -> None:
    up = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    found = lowest.compared((0.5,), [up, up, -up], [up, -up, up], [np.array([0, 0, 1, 1], np.int32)] * 3)
    assert found == {
        overlap.key(overlap.ACROSS, 0.5): [1.0, 0.0, 0.0],
        overlap.key(overlap.WITHIN, 0.5): [0.0, 1.0, 0.0],
        overlap.key(overlap.LEAST_USED, 0.5): [1.0, 1.0, 0.0],
    }


@pytest.mark.slow
def test_ratings_and_uses_are_of_the_same_examples(tmp_path: Path) -> None:
    given = {"data.examples": 64, "data.test_examples": 10, "train.batch_size": 16, "train.epochs": 2.0}
    extent = lowest.Extent(given, models=1, epochs=0.25)
    scores = lowest.el2n(extent, lowest.RESNET, 0, tmp_path)
    kept = lowest.times_kept(extent, 0, tmp_path)
    assert len(scores) == len(kept) == 64
    assert 0 < kept.sum() < 2 * 64
    assert kept.max() <= 2


# --- the scores -----------------------------------------------------------------------------------


def test_diet_keeps_what_its_arms_are_named_after_and_is_scored_as_its_header_says() -> None:
    path = CONFIGS / "cpu" / "diet.toml"
    plan, how = comparison(path), EXPERIMENTS["diet"].how
    for arm in (diet.EL2N, *diet.DIETS):
        config = of_arm(plan, arm, "fashion_mnist")
        keep = config.selection.keep if config.selection.policy == "sb" else 1.0
        assert 1.0 - config.data.prune_share == diet.LEFT
        assert diet.LEFT * keep == pytest.approx(float(arm.split()[1]), abs=1e-3)
    assert isinstance(how, Comparison)
    assert how.scores is not None
    files = files_of(plan)
    commands = [line for line in path.read_text().splitlines() if line.startswith("#   sbpipe score")]
    assert len(commands) == len(files) == 2
    for words in (shlex.split(line)[2:] for line in commands):
        args = build_parser().parse_args(words)
        config, _ = resolve_or_print(args)
        made = files[str(args.out)]
        assert config is not None
        assert (args.kind, args.models, args.epochs) == (
            how.scores.kind,
            how.scores.models,
            how.scores.share * made.train.epochs,
        )
        assert (recipe_of(config, 1.0), config.seed) == (recipe_of(made, 1.0), made.seed)
        assert config.data == replace(made.data, prune="", prune_share=0.0)


def pruned(file: Path, examples: int) -> str:
    base = TINY | {"data.prune": str(file), "data.examples": examples, "train.epochs": 1.0}
    full = {"selection.policy": "full"}
    return comparison_text(2, base, {"full": full, "el2n": full | {"data.prune_share": 0.5}})


def test_scores_are_made_once_before_the_runs_and_for_this_data_set_alone(tmp_path: Path) -> None:
    path, out, said = tmp_path / "diet.toml", tmp_path / "scores" / "one.npz", list[str]()
    path.write_text(pruned(out, 200))
    plan, scores = comparison(path), Scores("el2n", models=1, share=0.5)
    (fact,) = prepare(scores, plan, said.append)
    assert "el2n of 1 models" in fact
    assert said[1].startswith("scores: made in ")
    part = out.with_name("one.npz.parts") / "model-0.npz"
    before, made = part.stat().st_mtime_ns, out.read_bytes()
    again = comparison(path)
    prepare(scores, replace(again, cells=[cell for cell in again.cells if cell.seed == 1]), said.append)
    assert (part.stat().st_mtime_ns, out.read_bytes()) == (before, made)
    path.write_text(pruned(out, 201))
    with pytest.raises(ConfigError, match=r"data\.prune = .*one\.npz was made with data set = .*remove it"):
        prepare(scores, comparison(path), said.append)


def test_a_measurement_whose_arrays_are_missing_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"fashion_mnist\.npz.*there is no such file.*--quick"):
        command.run(build_parser().parse_args(["reproduce", "fig18", "overlap", "--out", str(out)]))
    assert not out.exists()
