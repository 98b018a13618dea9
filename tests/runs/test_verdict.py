"""The verdict of a run, from numbers alone."""

from typing import Any

import pytest

from sbpipe.runs.names import NUMBERS
from sbpipe.runs.verdict import lines_of, verdict_of

SOUND: dict[str, Any] = {
    "status": "finished",
    "mode": "pipelined",
    "trainer.idle_ratio": 0.004,
    "trainer.step_ms": 40.0,
    "trainer.view_ms": 2.0,
    "selector.busy_ratio": 0.7,
    "selector.scored": 9000,
    "selector.view_s": 1.0,
    "selector.score_s": 9.0,
    "selector.score_cpu_s": 8.9,
    "sync.transfer_ms": 0.0,
    "fidelity.spearman": 0.8,
    "selection.trust": 1.0,
    "selection.strength": 0.5,
    "worth.ess": 0.3,
    "worth.ess_error": 0.01,
    "selector.lost": 0,
    "lease.expired": 0,
}


def test_a_sound_run_is_not_slower_not_worse_and_says_that_better_is_not_measured() -> None:
    verdict = verdict_of(SOUND)
    assert verdict.headline.startswith("Not slower")
    assert "no sign of being worse" in verdict.headline
    assert "better is not measured" in verdict.headline
    assert "sbpipe worth" in verdict.worth
    assert "0.300 ± 0.010" in verdict.worth
    assert verdict.lost == "Nothing was lost."
    assert verdict.knob.startswith("none")


@pytest.mark.parametrize(
    ("changes", "cause", "knob"),
    [
        ({"selector.busy_ratio": 0.98}, "the selector's forward pass", "selector.precision"),
        (
            {"selector.busy_ratio": 0.98, "selector.view_s": 20.0},
            "the selector's data loading",
            "data.workers",
        ),
        ({"selector.busy_ratio": 0.98, "selector.score_cpu_s": 4.0}, "shared", "cores"),
        ({"selector.busy_ratio": 0.3, "sync.transfer_ms": 90.0}, "the link", "sync.interval"),
        ({"selector.busy_ratio": 0.3, "selector.lost": 1}, "selectors that were lost", "log"),
        ({"selector.busy_ratio": 0.3}, "a selector that idled", "sync.depth"),
        ({"trainer.wait_view_ratio": 0.25}, "the trainer's own data path", "data.workers"),
        ({"trainer.view_ms": 95.0}, "the trainer's own data path", "data.workers"),
    ],
)
def test_a_loop_that_waited_is_told_for_what_and_what_helps(
    changes: dict[str, Any], cause: str, knob: str
) -> None:
    verdict = verdict_of(SOUND | {"trainer.idle_ratio": 0.3} | changes)
    assert "waited 30 %" in verdict.headline
    assert cause in verdict.headline
    assert knob in verdict.knob


def test_a_loop_that_filled_its_batches_is_not_slower_and_says_how_much_was_not_selected() -> None:
    verdict = verdict_of(SOUND | {"fill.share": 0.4, "selector.busy_ratio": 0.99})
    assert verdict.headline.startswith("Not slower")
    assert "40 % of the trained examples were not selected" in verdict.loop
    assert "forward pass" in verdict.loop


def test_noise_is_uniform_under_a_steered_policy_and_perhaps_worse_under_another() -> None:
    doubted = SOUND | {
        "fidelity.spearman": -0.01,
        "selection.trust": 0.2,
        "selection.doubt": "their rank correlation with fresh losses is -0.01 ± 0.02",
    }
    assert "uniform for 80 % of the run" in verdict_of(doubted).headline
    verdict = verdict_of(doubted | {"selection.strength": None})
    assert "perhaps worse" in verdict.headline
    assert "-0.01 ± 0.02" in verdict.scores


def test_wrong_labels_are_said_with_what_was_done_about_them() -> None:
    mislabelled = SOUND | {
        "selection.label_trust": 0.6,
        "selection.label_doubt": "at least 17 % look wrong",
        "selection.wrong_labels": 0.25,
    }
    verdict = verdict_of(mislabelled)
    assert "no sign of being worse than random selection (40 % uniform" in verdict.headline
    assert "At least 25 % of the labels look wrong" in verdict.scores
    assert "better labels" in verdict.knob
    for strength in (None, 0.9):  # a policy without one, and one that was told not to heed it
        unheeded = verdict_of(mislabelled | {"selection.strength": strength})
        assert "perhaps worse (at least 25 % of the labels look wrong)" in unheeded.headline
    passed = verdict_of(mislabelled | {"selection.passed_over": 1500, "selector.scored": 10_000})
    assert "1,500 candidates (15 % of those scored) were passed over" in passed.scores
    assert "about 25 % of the labels look wrong, and such candidates were passed over" in passed.headline


def test_blindness_coarse_scores_and_losses_on_the_way_are_said() -> None:
    verdict = verdict_of(
        SOUND
        | {
            "scoring.estimated": 4500,
            "scoring.evaluation_loss": 2.4,
            "scoring.batch_loss": 1.5,
            "scoring.agreement": 0.6,
            "selector.lost": 2,
        }
    )
    assert "blind in evaluation mode (mean loss 2.40, with batch statistics 1.50)" in verdict.scores
    assert "50 % of the candidates" in verdict.scores
    assert "only to 0.60" in verdict.scores
    assert verdict.knob == "selector.precision = 'fp32'"
    assert verdict.lost == "Selectors lost 2."


def test_a_run_without_scores_says_whether_it_needed_none_or_had_no_selector_in_time() -> None:
    none = {**SOUND, "selector.scored": 0}
    assert "the policy needs no scores" in verdict_of(none).scores
    assert "no selector was ready in time" in verdict_of({**none, "fill.share": 1.0}).scores


def test_an_unknown_number_is_not_guessed() -> None:
    verdict = verdict_of({})
    assert "not known" in verdict.loop
    assert "No candidate was scored" in verdict.scores


def test_a_verdict_stands_in_the_summary_under_declared_names_and_is_read_back() -> None:
    verdict = verdict_of(SOUND)
    assert verdict.numbers().keys() <= NUMBERS.keys()
    assert lines_of(verdict.numbers())[0] == ("", verdict.headline)
    assert [label for label, _ in lines_of(verdict.numbers())][1:] == [
        "loop",
        "scores",
        "worth",
        "lost",
        "knob",
    ]


def test_examples_filled_in_before_the_selector_was_ready_are_told_from_late_ones() -> None:
    filled = SOUND | {"fill.share": 0.1, "selector.busy_ratio": 0.3, "fill.late": 20, "fill.alone": 0}
    verdict = verdict_of(filled | {"fill.starting": 180})
    assert "90 % of them before the selector was ready" in verdict.loop
    assert "fast enough" in verdict.loop
    never = verdict_of(filled | {"fill.starting": 200, "fill.late": 0, "selector.scored": 0})
    assert "fast enough" not in never.loop
    assert "No selector was ready in time" in never.loop
    verdict = verdict_of(filled | {"fill.starting": 5})
    assert "80 % of them because the selector was late" in verdict.loop


def test_a_selector_without_a_core_is_not_told_to_have_more_work_ahead() -> None:
    starved = {"fill.share": 0.75, "fill.late": 90, "fill.starting": 10, "selector.busy_ratio": 0.5}
    times = {"selector.score_s": 3.3, "selector.score_cpu_s": 0.7}
    verdict = verdict_of(SOUND | starved | times)
    assert "had a core for 21 % of its time" in verdict.loop
    assert verdict.knob == "cores of its own for the selector"
    verdict = verdict_of(SOUND | starved | times | {"selector.score_cpu_s": 3.2})
    assert "too little work ahead" in verdict.loop


@pytest.mark.parametrize(
    ("published", "knob"), [(101, "a smaller sync.depth"), (13, "a shorter sync.interval")]
)
def test_old_scores_are_not_told_to_be_published_more_often_than_each_step(published: int, knob: str) -> None:
    old = SOUND | {
        "fidelity.spearman": 0.01,
        "staleness.mean": 2.6,
        "steps": 100,
        "sync.published": published,
    }
    assert knob in verdict_of(old).knob


def test_a_selector_that_died_again_and_again_is_not_one_that_needed_a_longer_run() -> None:
    dead = {**SOUND, "selector.scored": 0, "fill.share": 1.0, "fill.starting": 100, "restarts.selector": 5}
    verdict = verdict_of(dead)
    assert verdict.lost == "Selector restarts 5."
    assert "look into the selector's log" in verdict.knob
