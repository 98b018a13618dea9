"""Both roles in one process: what a run leaves, and that neither delay nor disorder of messages changes what
is trained.
"""

import json
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from support.runs import SMALL, events_of, small, summary_of, train_inline, train_over

import sbpipe
from sbpipe.config import from_dict
from sbpipe.data import load_data
from sbpipe.errors import ModelError, RunDirError, UserError
from sbpipe.link.faults import FaultyPort
from sbpipe.models import build_model
from sbpipe.trainer.setup import prepare
from sbpipe.weights.manifest import digest

NAMES = [
    "wall_s",
    "steps",
    "candidates",
    "kept",
    "keep_rate",
    "trainer.busy_ratio",
    "trainer.idle_ratio",
    "selector.busy_ratio",
    "selector.idle_ratio",
    "staleness.mean",
    "staleness.p95",
    "staleness.max",
    "sync.published",
    "sync.applied",
    "sync.skipped",
    "sync.snapshot_ms",
    "sync.transfer_ms",
    "sync.apply_ms",
    "fidelity.spearman",
    "eval.error",
    "eval.loss",
    "weights.digest",
    "device.trainer",
    "device.selector",
]


def test_a_run_leaves_its_settings_versions_events_and_summary(run_path: Path) -> None:
    config = small(mode="inline")
    train_inline(config, run_path)
    assert from_dict(json.loads((run_path / "config.json").read_text())) == config
    assert json.loads((run_path / "environment.json").read_text())["versions"]["torch"] == metadata.version(
        "torch"
    )
    summary = summary_of(run_path)
    assert [name for name in NAMES if name not in summary] == []
    assert (summary["status"], summary["steps"], summary["staleness.max"]) == ("finished", 12, 0)
    assert len(events_of(run_path, "step")) == 12


def test_class_counts_of_every_batch_are_events(run_path: Path) -> None:
    train_inline(small(mode="inline"), run_path)
    assert {sum(event["class_counts"]) for event in events_of(run_path, "step")} == {16}


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    digests = [
        train_inline(small(mode="inline", seed=seed), tmp_path / str(k))["weights.digest"]
        for k, seed in enumerate((1, 1, 2))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_a_run_by_epochs_considers_every_candidate_once(run_path: Path) -> None:
    summary = train_inline(small(mode="inline", train__steps=0, train__epochs=1.5), run_path)
    assert summary["candidates"] == 900
    assert summary["kept"] == summary["steps"] * 16 + summary["leftover"]


def test_a_run_by_seconds_ends_with_its_budget(run_path: Path) -> None:
    summary = train_inline(small(mode="inline", train__steps=0, train__seconds=1.0), run_path)
    rates = [event["rate"] for event in events_of(run_path, "step")]
    assert summary["train_s"] >= 1.0
    falling = rates[rates.index(max(rates)) :]
    assert falling == sorted(falling, reverse=True)  # decays as the budget is spent


@pytest.mark.slow
def test_selective_backprop_learns_the_embedded_data(run_path: Path) -> None:
    config = small(
        mode="inline", data__examples=2000, train__batch_size=32, train__steps=150, data__test_examples=400
    )
    summary = train_inline(config, run_path)
    assert summary["eval.error"] < 0.6  # chance is 0.9


def test_nothing_is_lost_or_trained_twice_when_messages_are_doubled_and_reordered(run_path: Path) -> None:
    config = small(train__steps=0, train__epochs=2.0)
    summary = train_over(
        config, run_path, lambda port: FaultyPort(port, 5, duplicate=0.3, reorder=0.3, delay=0.2)
    )
    assert summary["candidates"] == 1200
    assert summary["kept"] == summary["steps"] * 16 + summary["leftover"]
    assert summary["lease.fenced"] > 0


def test_training_goes_on_when_answers_are_lost(run_path: Path) -> None:
    config = small(
        train__steps=0,
        train__epochs=1.0,
        link__lost_after_s=2.0,
        link__hung_after_s=2.0,
        link__heartbeat_s=0.05,
    )
    summary = train_over(config, run_path, lambda port: FaultyPort(port, 7, drop=0.3))
    assert summary["candidates"] == 600
    assert summary["lease.expired"] > 0


def test_the_pixels_scored_are_the_pixels_trained_on() -> None:
    config = small(view__crop=4, view__flip=True, view__cutout=8)
    one = load_data(config.data, config.view, seed=3, device=torch.device("cpu"))
    two = load_data(config.data, config.view, seed=3, device=torch.device("cpu"))
    ids = np.array([5, 99, 17])
    assert torch.equal(one.score.batch(ids, 4).inputs, two.train.batch(ids[::-1].copy(), 4).inputs.flip(0))


def scalar_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that forgot reduction='none'."""
    return torch.nn.functional.cross_entropy(outputs, targets)


def test_a_loss_of_the_wrong_shape_fails_before_anything_is_written(run_path: Path) -> None:
    with pytest.raises(ModelError, match="reduction='none'"):
        train_inline(small(mode="inline", loss__name="test_pipeline:scalar_loss"), run_path)
    assert not run_path.exists()


def test_the_rehearsal_leaves_no_trace_in_weights_or_buffers() -> None:
    config = small()
    setup = prepare(config)
    fresh = build_model(config.model, num_classes=10, input_shape=(3, 32, 32), seed=config.seed)
    assert digest(setup.train_step.model) == digest(fresh)


def test_mixed_precision_trains(run_path: Path) -> None:
    summary = train_inline(small(mode="inline", train__amp="bf16"), run_path)
    assert summary["steps"] == 12
    assert np.isfinite(summary["eval.loss"])


def test_a_run_from_python_returns_its_summary(run_path: Path) -> None:
    summary = sbpipe.train(SMALL | {"mode": "inline", "train.steps": 3}, run_path)
    assert summary == summary_of(run_path)


def test_score_and_train_may_use_different_views(run_path: Path) -> None:
    summary = train_inline(small(mode="inline", view__score="clean", view__crop=4), run_path)
    assert summary["fidelity.mean_error"] > 0


def test_a_finished_run_leaves_its_last_weights(run_path: Path) -> None:
    summary = train_inline(small(mode="inline"), run_path)
    state = torch.load(run_path / "checkpoints" / "step-12.pt", weights_only=True)
    model = build_model(small().model, num_classes=10, input_shape=(3, 32, 32), seed=5)
    model.load_state_dict(state["model"])
    assert digest(model) == summary["weights.digest"]


def test_weights_that_are_not_finite_are_never_saved(run_path: Path) -> None:
    config = small(
        mode="inline", optim__lr=1e20, schedule__name="constant", checkpoint__every=1, train__steps=20
    )
    with pytest.raises(UserError, match=r"diverged|not finite"):
        train_inline(config, run_path)
    for path in (run_path / "checkpoints").glob("*.pt"):
        state = torch.load(path, weights_only=True)
        assert all(tensor.isfinite().all() for tensor in state["model"].values())


def test_a_finished_run_is_not_resumed(run_path: Path) -> None:
    sbpipe.train(SMALL | {"mode": "inline", "train.steps": 2}, run_path)
    with pytest.raises(RunDirError, match="is finished"):
        sbpipe.train({}, run_path, resume=True)
