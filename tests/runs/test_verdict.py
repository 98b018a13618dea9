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
        (
            {"selector.busy_ratio": 0.98, "scoring.precision_asked": "fp32"},
            "the selector's forward pass",
            "selector.precision",
        ),
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


def test_wrong_labels_hide_neither_a_swing_nor_scores_that_say_nothing() -> None:
    passed = {"selection.passed_over": 1500, "selection.wrong_labels": 0.25}
    doubted = {"selection.label_trust": 0.6, "selection.label_doubt": "at least 17 % look wrong"}
    for labels in (passed, doubted):
        assert (
            "perhaps worse (the loop swung)" in verdict_of(SOUND | labels | {"selection.swing": 12}).headline
        )
        faint = verdict_of(SOUND | labels | {"fidelity.spearman": 0.03})
        assert "perhaps worse (scores said nothing)" in faint.headline
    few = verdict_of(SOUND | {"selection.passed_over": 3, "selection.wrong_labels": 0.0})
    assert few.knob.startswith("none"), "three of 9000 candidates are no finding"


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


@pytest.mark.parametrize(
    ("has", "knob"),
    [
        ({"scoring.precision_asked": "fp32", "keep.last": 0.25}, "selector.precision = 'auto'"),
        ({"scoring.precision_asked": "bf16", "keep.at_bound": "most"}, "selector.precision = 'auto'"),
        ({"keep.at_bound": "most", "keep.last": 0.5}, "another selector (2 in place of 1)"),
        ({"keep.at_bound": "most", "keep.last": 0.5, "selectors": 3}, "another selector (5 in place of 3)"),
        ({"policy": "spread", "keep.last": 0.25}, "selection.keep = 'auto'"),
        ({"policy": "spread", "keep.last": 0.5}, "selection.keep = 0.71 in place of 0.50"),
        ({"policy": "sb", "keep.last": 0.25}, "selection.keep = 0.36 in place of 0.25"),
        ({"policy": "sb", "keep.last": 0.7}, "another selector (2 in place of 1)"),
    ],
)
def test_one_knob_is_named_for_a_slow_selector_and_none_that_the_run_had(
    has: dict[str, Any], knob: str
) -> None:
    slow = {"trainer.idle_ratio": 0.3, "selector.busy_ratio": 0.98, "scoring.precision_asked": "auto"}
    verdict = verdict_of(SOUND | slow | {"scoring.precision": "int8"} | has)
    assert verdict.knob == knob
    assert "The selector's forward pass (int8) is too slow" in verdict.loop


@pytest.mark.parametrize("bound", ["least", "between"])
def test_a_selector_whose_keep_rate_has_room_is_not_called_too_slow(bound: str) -> None:
    verdict = verdict_of(
        SOUND
        | {"fill.share": 0.1, "fill.late": 90, "fill.starting": 10, "selector.busy_ratio": 0.95}
        | {"keep.at_bound": bound, "keep.last": 0.25, "keep_rate": 0.3}
    )
    assert "fast enough on average to keep only 25 %" in verdict.loop
    assert verdict.knob == "a larger sync.depth"


def test_a_busy_selector_is_not_blamed_for_what_was_filled_in_before_it_was_ready() -> None:
    filled = {"fill.share": 0.19, "fill.starting": 58, "fill.late": 42, "selector.busy_ratio": 0.7}
    verdict = verdict_of(SOUND | filled | {"keep.at_bound": "least"})
    assert "Once it was ready, the selector was late for 8.0 % of the trained examples." in verdict.loop
    assert verdict.knob == "a longer run: the selector starts once"


def test_a_busy_selector_is_not_called_too_slow_for_what_was_filled_in_after_it_was_lost() -> None:
    alone = {"fill.share": 0.15, "fill.alone": 100, "selector.lost": 1, "keep.last": 0.33, "policy": "sb"}
    verdict = verdict_of(SOUND | alone)
    assert "while no selector was left. Selectors were lost on the way." in verdict.loop
    assert verdict.knob == "look into the selector's log"
    few = verdict_of(SOUND | alone | {"fill.share": 0.01, "trainer.idle_ratio": 0.3})
    assert "forward pass is too slow" in few.loop, "too few fills to explain the wait"


def test_a_keep_rate_that_the_run_had_is_not_proposed() -> None:
    slow = {"fill.share": 0.02, "fill.late": 10, "fill.starting": 9, "selector.busy_ratio": 0.98}
    verdict = verdict_of(SOUND | slow | {"keep.last": 0.33, "policy": "sb"})
    assert verdict.knob == "another selector (2 in place of 1)"


@pytest.mark.parametrize("mode", ["inline", "lockstep", "fixed-lag"])
def test_a_mode_that_takes_turns_says_when_it_waited_for_its_own_loading(mode: str) -> None:
    waited = SOUND | {"mode": mode, "trainer.idle_ratio": 0.5}
    own = verdict_of(waited | {"trainer.wait_view_ratio": 0.45})
    assert "most of it for loading its own train batches" in own.headline
    assert "for scores" not in own.loop
    assert "data.workers" in own.knob
    scores = verdict_of(waited | {"trainer.wait_view_ratio": 0.05})
    assert "of its time for scores, 5.0 % of it for loading its own train batches" in scores.loop
    assert scores.knob.startswith("mode = 'pipelined'" if mode == "inline" else "none")
    nothing = verdict_of(waited | {"trainer.wait_view_ratio": 0.0, "selector.scored": 0})
    assert "for scores" not in nothing.loop
    assert "batches that are chosen without scores" in nothing.loop
    at_once = verdict_of(waited | {"trainer.idle_ratio": 0.001})
    assert "did not wait" in at_once.loop


def test_data_parallel_training_says_when_it_waited_for_its_loading() -> None:
    alone = {**SOUND, "mode": "data-parallel", "selector.scored": 0, "trainer.idle_ratio": 0.5}
    verdict = verdict_of(alone | {"trainer.wait_view_ratio": 0.5})
    assert "Every device trained (waited 50 %, for loading its own train batches)" in verdict.headline
    assert "all of it for loading" in verdict.loop
    assert "data.workers" in verdict.knob
    assert "loading" not in verdict_of(alone | {"trainer.wait_view_ratio": 0.01}).headline
    assert verdict_of(alone | {"trainer.idle_ratio": 0.001}).headline.startswith("Every device trained;")


def test_the_headline_counts_what_selection_itself_takes_of_the_loop() -> None:
    cheap = verdict_of(SOUND | {"trainer.selection_ratio": 0.012})
    assert cheap.headline.startswith(
        "Not slower than plain training (waited 0.4 %, selection's own work 1.2 %)"
    )
    assert cheap.loop == "The loop did not wait (0.4 % of its time), and 1.2 % went to selection's own work."
    costly = SOUND | {"trainer.selection_ratio": 0.05, "trainer.steer_s": 3.0, "trainer.publish_s": 1.0}
    verdict = verdict_of(costly)
    slower = "Slower than plain training by 5.7 % (waited 0.4 %, selection's own work 5.0 %"
    assert verdict.headline.startswith(f"{slower})")
    assert "train.batch_size" in verdict.knob
    assert verdict_of(costly | {"trainer.publish_s": 9.0}).knob == "a longer sync.interval"
    filled = verdict_of(costly | {"fill.share": 0.1, "fill.late": 10}).headline
    assert filled.startswith(f"{slower}, 10 % of its examples filled in without scores)")
    waited = verdict_of(costly | {"trainer.idle_ratio": 0.3}).headline
    assert "by 54 % (selection's own work 5.0 %, waited 30 %, for the selector's forward pass)" in waited
    loading = verdict_of(costly | {"trainer.idle_ratio": 0.3, "trainer.wait_view_ratio": 0.3}).headline
    assert "Slower than plain training (selection's own work" in loading, "plain training may wait for it too"
