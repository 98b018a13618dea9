"""A metric of the user's own is measured with the test error, and told wherever that is."""

from pathlib import Path

import pytest
import torch
from support.own_data import enter_folder
from support.runs import events_of, settings, small, summary_of, train_inline
from support.runs import sbpipe as command

from sbpipe.config import EvalConfig
from sbpipe.errors import ModelError
from sbpipe.models.metrics import build_metric
from sbpipe.runs.reader import read_run
from sbpipe.show.report.facts import tiles_of
from sbpipe.show.report.loss import test_charts as charts_of_tests

MINE = """
def is_wrong(outputs, targets):
    return outputs.argmax(1) != targets

def mean(outputs, targets):
    return is_wrong(outputs, targets).float().mean()

def broken(outputs, targets):
    return outputs["nothing"]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter_folder(tmp_path, monkeypatch, metric_mine=MINE)


def test_a_metric_is_the_mean_over_the_whole_test_set_under_its_name(run_path: Path) -> None:
    # A batch size that does not divide the test set: a mean of means would be another.
    config = small(mode="inline", eval__metric="metric_mine:is_wrong", eval__batch_size=33, eval__every=0.5)
    summary = train_inline(config, run_path)
    assert summary["eval.metric"] == pytest.approx(summary["eval.error"], abs=1e-12)
    assert summary["eval.metric_name"] == "is_wrong"
    evals = events_of(run_path, "eval")
    assert [event["metric"] for event in evals] == pytest.approx([event["error"] for event in evals])
    assert events_of(run_path, "progress")[-1]["metric_name"] == "is_wrong"
    run = read_run(run_path)
    assert "is_wrong" in dict(tiles_of(run))
    assert [chart.title for chart in charts_of_tests(run)] == ["Test loss", "is_wrong"]


def test_a_run_without_a_metric_says_nothing_of_one(run_path: Path) -> None:
    summary = train_inline(small(mode="inline"), run_path)
    assert (summary["eval.metric"], summary["eval.metric_name"]) == (None, None)
    assert events_of(run_path, "progress")[-1]["test_loss"] == summary["eval.loss"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("mean", r"mean returned \[\] for 2 examples"), ("broken", r"broken cannot be computed")],
)
def test_a_metric_that_gives_no_value_per_example_is_refused(name: str, message: str) -> None:
    metric = build_metric(EvalConfig(metric=f"metric_mine:{name}"))
    assert metric is not None
    with pytest.raises(ModelError, match=message):
        metric(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))


def test_a_wrong_metric_ends_the_run_before_it_begins(run_path: Path) -> None:
    with pytest.raises(ModelError, match=r"eval\.metric: mean returned"):
        train_inline(small(mode="inline", eval__metric="metric_mine:mean"), run_path)
    assert not run_path.exists()


def test_a_pipelined_run_shows_it_and_its_selector_needs_no_leave(run_path: Path, here: Path) -> None:
    given = settings(eval__metric="metric_mine:is_wrong", train__steps=4)
    done = command("run", "--run-dir", str(run_path), *given, cwd=here)
    assert done.returncode == 0, done.stderr
    assert "  is_wrong " in done.stdout
    assert summary_of(run_path)["eval.metric_name"] == "is_wrong"
