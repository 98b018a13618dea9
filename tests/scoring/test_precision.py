"""Precisions as a user meets them: chosen, measured, refused where they cannot be, told of in a run."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from support.nets import candidates, needs_int8, net, scorer_of
from support.runs import events_of, sbpipe, settings, small, train_inline

from sbpipe.config import resolve
from sbpipe.errors import ConfigError, DeviceError
from sbpipe.scoring import int8, precision
from sbpipe.scoring.autotune import Measured, choose_batch_size, choose_precision, knee, ladder_of


def rows(**measured: tuple[float, float]) -> list[Measured]:
    return [Measured(name, rate, agreement) for name, (rate, agreement) in measured.items()]


def test_auto_takes_the_fastest_that_ranks_alike_and_keeps_the_slower_ones_to_step_back_to() -> None:
    measured = rows(fp32=(100.0, 1.0), bf16=(150.0, 0.99), fp16=(90.0, 1.0), int8=(400.0, 0.96))
    assert ladder_of(measured, 0.95) == ["fp32", "bf16", "int8"]
    assert ladder_of(measured, 0.97) == ["fp32", "bf16"]
    assert ladder_of(rows(fp32=(100.0, 1.0), int8=(400.0, float("nan"))), 0.95) == ["fp32"]


def test_the_knee_is_the_smallest_size_that_is_nearly_as_fast_as_the_fastest() -> None:
    assert knee([(16, 50.0), (32, 80.0), (64, 96.0), (128, 100.0), (256, 90.0)]) == 64


def test_auto_measures_what_there_is_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scorer = scorer_of(net())
    measured = choose_precision(scorer, *candidates(64), 0.9)
    assert [row.precision for row in measured] == precision.supported(torch.device("cpu"))
    assert all(row.examples_per_s > 0 and row.agreement > 0.9 for row in measured)
    assert all(str(row) in caplog.text for row in measured)
    assert [*scorer.slower, scorer.precision] == ladder_of(measured, 0.9)
    assert f"scoring in {scorer.precision}" in caplog.text
    assert choose_batch_size(scorer.score, *candidates(64)) in (16, 32, 64)


def test_int8_on_an_accelerator_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(
        DeviceError,
        match=r"selector.precision = 'int8': PyTorch has no integer convolutions for cuda. Write fp16",
    ):
        precision.refuse("int8", torch.device("cuda:0"))
    precision.refuse("auto", torch.device("cuda:0"))


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
        ("selector.batch_size", "many", "must be of type int or 'auto'"),
        ("selector.batch_size", -1, "must be at least 0"),
        ("selector.scale", 0.0, "must be above 0"),
        ("selector.scale", 1.5, "at most 1"),
        ("selector.min_agreement", 2.0, "at most 1"),
    ],
)
def test_wrong_settings_are_named(key: str, value: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        resolve({key: value})
    assert key in str(caught.value)


@pytest.mark.parametrize("key", ["selector.precision", "selector.batch_size"])
def test_lockstep_and_the_compiler_want_a_name_not_a_measurement(key: str) -> None:
    with pytest.raises(ConfigError, match="lockstep promises bit-equal scores"):
        resolve({"mode": "lockstep", key: "auto"})
    with pytest.raises(ConfigError, match="each one would be compiled"):
        resolve({"selector.compile": True, key: "auto"})


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


def test_what_auto_measured_is_told_where_the_run_was_started(run_path: Path) -> None:
    changes = {"selector__precision": "auto", "selector__batch_size": "auto", "train__steps": 6}
    done = sbpipe("run", "--run-dir", str(run_path), *settings(**changes))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "selector.precision = 'auto': scoring in" in done.stdout + done.stderr
    assert "selector.batch_size = 'auto':" in done.stdout + done.stderr


def test_an_exact_run_has_nothing_to_check(run_path: Path) -> None:
    summary = train_inline(small(mode="inline", train__steps=4), run_path)
    assert summary["scoring.agreement"] is None
    assert summary["scoring.checks"] == 0
