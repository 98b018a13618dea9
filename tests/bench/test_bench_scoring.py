"""The bench of scoring: its rows, its bars, and where its weights come from. No time is asserted."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs import small, train_inline

from sbpipe import bench
from sbpipe.bench import scoring, subject
from sbpipe.bench.scored import Scored, bars
from sbpipe.errors import RunDirError
from sbpipe.scoring import int8


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "TRAININGS", {})
    monkeypatch.setattr(subject, "MOST", 24)
    monkeypatch.setattr(scoring, "BATCH_SIZES", (8, 16))
    monkeypatch.setattr(scoring, "REFERENCE", 16)
    monkeypatch.setattr(scoring, "ROUNDS", 1)


def row(precision: str, rate: float, **changes: float) -> Scored:
    return replace(Scored("resnet18_cifar", precision, 64, rate, 1.0, 1.0, 50.0, 1.0, 10.0), **changes)


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_the_table_of_a_run_has_every_precision_and_what_programs_ask_for(
    run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_inline(small(mode="inline"), run_path)
    bench.scoring_bench({}, run_path, as_json=True, compiled=False)
    rows = json.loads(capsys.readouterr().out)
    found = {(row["precision"], row["batch_size"]) for row in rows}
    assert found >= {("fp32", 8), ("fp32", 16), ("fp32 as it is", 16)}
    assert (("int8", 8) in found) == int8.is_available()  # a CPU without the kernels has no such row
    wanted = {"precision", "batch_size", "examples_per_s", "ratio_to_fp32", "spearman", "refresh_ms"}
    assert all(wanted <= set(row) for row in rows)
    assert all(row["spearman"] > 0.9 and row["examples_per_s"] > 0 and row["refresh_ms"] > 0 for row in rows)
    assert next(row for row in rows if row["precision"] == "fp32")["ratio_to_fp32"] == 1.0


def test_weights_come_from_a_run_or_not_at_all(tmp_path: Path, run_path: Path) -> None:
    with pytest.raises(RunDirError, match="is no run directory"):
        subject.from_run(tmp_path)
    train_inline(small(mode="inline", train__steps=2), run_path)
    shutil.rmtree(run_path / "checkpoints")
    with pytest.raises(RunDirError, match="has no checkpoint"):
        subject.from_run(run_path)


def test_bars_compare_with_the_model_as_it_is_and_with_the_best_other_way() -> None:
    rows = [
        row("fp32", 120.0),
        row("fp32 as it is", 100.0),
        row("fp32 compiled", 130.0),
        row("int8", 400.0, spearman=0.97),
    ]
    found = {bar.what.partition(": ")[2]: bar for bar in bars(rows)}
    assert found["fp32 / best other fp32"].value == pytest.approx(120 / 130)
    assert found["fp32 / best other fp32"].is_met is False
    assert found["int8 / fp32 as it is"].value == 4.0
    assert found["Spearman of int8 with fp32"].is_met is False
    assert found["int8 refresh"].is_met is True
    assert bars([row("bf16", 1.0)]) == []
