"""Precisions as a user meets them: chosen, measured, refused where they cannot be, told of in a run."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.nets import candidates, needs_int8, net, scorer_of
from support.runs import events_of, sbpipe, settings, small, summary_of, train_inline, train_over_the_wire

from sbpipe.config import resolve
from sbpipe.errors import ConfigError, DeviceError
from sbpipe.scoring import Scorer, int8, precision
from sbpipe.scoring.autotune import BATCH_SIZES, Measured, Tuning, knee, ladder_of, worth_another_look


def rows(**measured: tuple[float, float]) -> list[Measured]:
    return [Measured(name, rate, agreement) for name, (rate, agreement) in measured.items()]


def test_auto_takes_the_fastest_that_ranks_alike_and_keeps_the_slower_ones_to_step_back_to() -> None:
    measured = rows(fp32=(100.0, 1.0), bf16=(150.0, 0.99), fp16=(90.0, 1.0), int8=(400.0, 0.96))
    assert ladder_of(measured, 0.95) == ["fp32", "bf16", "int8"]
    assert ladder_of(measured, 0.97) == ["fp32", "bf16"]
    assert ladder_of(rows(fp32=(100.0, 1.0), int8=(400.0, float("nan"))), 0.95) == ["fp32"]


def test_the_knee_is_the_smallest_size_that_is_nearly_as_fast_as_the_fastest() -> None:
    assert knee([(16, 50.0), (32, 80.0), (64, 96.0), (128, 100.0), (256, 90.0)]) == 64


def test_a_precision_that_failed_by_its_ranks_alone_is_looked_at_again() -> None:
    measured = rows(fp32=(100.0, 1.0), bf16=(150.0, 0.99), fp16=(90.0, 0.5), int8=(400.0, 0.93))
    assert worth_another_look(measured, 0.95) == ["int8"]
    assert worth_another_look(measured, 0.9) == []


def tuning_of(scorer: Scorer, *, precision: bool = True, batch_size: bool = False) -> Tuning:
    return Tuning(scorer, 64, has_precision=precision, has_batch_size=batch_size, least=0.9)


def tune(tuning: Tuning) -> int:
    """Bring candidates and measure a piece, as after every lease; how many pieces it took."""
    count = 0
    while not tuning.is_over and count < 2_000:
        tuning.offer(*candidates(64))
        if tuning.is_due():
            tuning.piece()
            count += 1
    return count


def test_auto_measures_what_there_is_piece_by_piece_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scorer = scorer_of(net())
    tuning = tuning_of(scorer)
    assert tune(tuning) > len(precision.supported(torch.device("cpu")))
    assert tuning.is_over
    assert all(f"{name} " in caplog.text for name in precision.supported(torch.device("cpu")))
    assert scorer.slower[:1] == ([] if scorer.precision == "fp32" else ["fp32"])
    assert f"scoring in {scorer.precision}; measured fp32" in caplog.text


def test_nothing_changes_before_the_last_piece() -> None:
    scorer = scorer_of(net())
    tuning = tuning_of(scorer)
    tuning.piece()
    assert not tuning.is_over, "there are no candidates yet"
    exact = scorer.score(*candidates(16))
    for _ in range(3):
        tuning.offer(*candidates(64))
        tuning.piece()
        assert scorer.precision == "fp32"
        assert np.array_equal(scorer.score(*candidates(16)), exact)


def test_the_batch_size_is_measured_up_to_what_candidates_there_are() -> None:
    tuning = tuning_of(scorer_of(net()), precision=False, batch_size=True)
    tune(tuning)
    assert tuning.batch_size in BATCH_SIZES


def test_a_trial_shares_the_weights_and_leaves_the_scorer_alone() -> None:
    scorer = scorer_of(net())
    trial = scorer.trial("bf16")
    assert (scorer.precision, trial.precision) == ("fp32", "bf16")
    with torch.no_grad():
        next(iter(scorer.model.parameters())).mul_(2.0)
    scorer.weights_arrived()
    trial.refresh(anyway=True)
    moved = scorer.score(*candidates(32))
    assert np.corrcoef(trial.score(*candidates(32)), moved)[0, 1] > 0.95
    scorer.adopt(trial)
    assert scorer.precision == "bf16"
    assert np.array_equal(scorer.score(*candidates(32)), trial.score(*candidates(32)))


@needs_int8
def test_candidates_that_no_range_can_be_learned_from_leave_int8_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    scorer = scorer_of(net())
    inputs, targets = candidates(64)
    inputs[:] = float("nan")
    tuning = tuning_of(scorer)
    for _ in range(200):
        tuning.offer(inputs, targets)
        if tuning.is_due():
            tuning.piece()
    assert scorer.precision == "fp32"
    assert "not int8: " in caplog.text


def test_int8_where_nothing_multiplies_integers_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(
        DeviceError,
        match=r"selector.precision = 'int8': PyTorch has no integer product for meta \(.*Write fp16, or auto",
    ):
        precision.refuse("int8", torch.device("meta"))
    precision.refuse("auto", torch.device("meta"))


def test_int8_without_kernels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "is_available", lambda: False)
    with pytest.raises(
        DeviceError, match=r"this build of PyTorch has no integer kernels for this CPU.*Write fp32, or auto"
    ):
        precision.refuse("int8", torch.device("cpu"))
    assert "int8" not in precision.supported(torch.device("cpu"))


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("selector.precision", "int4", "unknown value"),
        ("selector.batch_size", "many", "must be a whole number or 'auto'"),
        ("selector.batch_size", -1, "must be at least 0"),
        ("selector.scale", 0.0, "must be at least 0.01"),
        ("selector.scale", 1.5, "at most 1"),
        ("selector.min_agreement", 2.0, "at most 1"),
    ],
)
def test_wrong_settings_are_named(key: str, value: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        resolve({key: value})
    assert key in str(caught.value)


@pytest.mark.parametrize(
    ("given", "is_measured"),
    [
        ({}, True),
        ({"selector.compile": True}, False),
        *(({"mode": mode}, False) for mode in ("inline", "lockstep", "fixed-lag")),
    ],
)
def test_auto_is_fp32_for_good_where_nothing_may_be_measured(
    given: dict[str, Any], is_measured: bool
) -> None:
    config = resolve(given)
    assert config.selector.precision == "auto"
    assert (config.first_precision, config.may_measure) == ("fp32", is_measured)


def test_auto_is_a_batch_size_and_the_trainer_plans_with_the_default() -> None:
    config = resolve({"selector.batch_size": "auto", "train.batch_size": 100})
    assert config.selector.batch_size == "auto"
    assert config.score_batch_size == 50


@needs_int8
def test_a_run_in_int8_trains_and_tells_how_well_its_scores_rank(run_path: Path) -> None:
    summary = train_inline(
        small(mode="inline", selector__precision="int8", model__options={"width": 8}), run_path
    )
    checks = events_of(run_path, "check")
    assert summary["scoring.checks"] == len(checks) >= 1
    assert all(check["precision"] == "int8" for check in checks)
    assert summary["scoring.agreement"] == pytest.approx(np.mean([check["agreement"] for check in checks]))
    assert summary["scoring.agreement"] > 0.95
    assert summary["scoring.overflowed"] == 0
    assert summary["scoring.refresh_ms"] > 0


def test_a_run_answers_its_first_leases_in_fp32_and_says_later_what_it_measured(run_path: Path) -> None:
    changes = {"selector__precision": "auto", "selector__batch_size": "auto", "train__steps": 150}
    done = sbpipe("run", "--run-dir", str(run_path), *settings(**changes))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "selector.precision = 'auto': scoring in" in done.stdout + done.stderr
    assert "selector.batch_size = 'auto':" in done.stdout + done.stderr
    (file,) = run_path.glob("events-selector-*.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    kinds = [event["kind"] for event in events]
    assert kinds.index("built") < kinds.index("selection") < kinds.index("note")
    assert next(event for event in events if event["kind"] == "built")["precision"] == "fp32"
    # The last word: ranks may have been too far from fp32's later, and the selector stepped back.
    said = [event["text"] for event in events if "scoring in " in event.get("text", "")]
    chosen = said[-1].split("scoring in ")[1].split(" ")[0].rstrip(";")
    told = [event["device"] for event in events_of(run_path, "selector") if event["state"] == "ready"]
    assert told[0].endswith(" fp32")
    assert told[-1].endswith(" " + chosen)
    assert summary_of(run_path)["device.selector"] == told[-1]
    assert summary_of(run_path)["selector.tune_s"] > 0


def test_lockstep_left_to_auto_equals_one_process_bit_for_bit(tmp_path: Path) -> None:
    given = {"selector__precision": "auto", "selector__batch_size": "auto", "sync__interval": "auto"}
    wire = train_over_the_wire(small(mode="lockstep", sync__depth="auto", **given), tmp_path / "wire")
    inline = train_inline(small(mode="inline", sync__depth="auto", **given), tmp_path / "inline")
    assert wire["weights.digest"] == inline["weights.digest"]
    assert wire["device.selector"].endswith(" fp32")
    assert wire["selector.tune_s"] == 0


def test_an_exact_run_has_nothing_to_check(run_path: Path) -> None:
    summary = train_inline(small(mode="inline", train__steps=4), run_path)
    assert summary["scoring.agreement"] is None
    assert summary["scoring.checks"] == 0
