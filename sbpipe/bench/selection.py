"""Selection beside the forward pass: history, cdf, residuals, policy, coin and choice, on one core."""

from itertools import count

import numpy as np
import torch

from sbpipe.bench.rows import Row, one_core, seconds_per_call
from sbpipe.config import LossConfig, ModelConfig, SelectionConfig
from sbpipe.machine.layout import laid_out, layout_of
from sbpipe.models import build_model
from sbpipe.models.residuals import MOST_AXES, build_residual
from sbpipe.selection import (
    POLICIES,
    Policy,
    ScoreCache,
    SetPolicy,
    build_policy,
    choose,
    coins,
    set_coins,
)

_CLASSES = (10, MOST_AXES, 1000)
"""Of which sets are chosen: residuals of more classes than axes are projected."""
_MOST_SHARE = 0.02
"""Of a ResNet-18 forward pass of the same candidates: what selection may cost."""


def measure() -> list[Row]:
    """Candidates per second through all of selection, and what the slowest costs beside a forward pass."""
    scored = [name for name, policy in POLICIES.items() if _ranks_scores(policy)]
    rows = [
        _row("sb, history 4096", SelectionConfig(policy="sb", history=4096), at_least=2e6),
        *(_row(f"{name}, history 1024", SelectionConfig(policy=name, history=1024)) for name in scored),
        *(sets := [_set_row("spread", classes) for classes in _CLASSES]),
        *(
            _row(f"{name} by class (10)", SelectionConfig(policy=name, history_by="class"))
            for name in ("steady", "topk")
        ),
        _row("rank, outliers clipped", SelectionConfig(policy="rank", outliers="clip")),
        _predicted(50_000, 8),
    ]
    slowest = min(rows, key=lambda row: row.value)
    forward_rate = _forward_rate()
    beside = [row for row in rows if row is slowest or row in sets]
    return [*rows, *(_share_row(row, forward_rate / row.value) for row in beside)]


def _share_row(row: Row, share: float) -> Row:
    return Row("selection", f"{row.what}, of a ResNet-18 forward pass", share, "", at_most=_MOST_SHARE)


def _ranks_scores(policy: type[Policy]) -> bool:
    return policy.traits.needs_scores and not policy.traits.chooses_sets


def _set_row(name: str, classes: int) -> Row:
    """A quarter of 512 candidates chosen as a set, from the logits on."""
    policy, rng = build_policy(SelectionConfig(policy=name, keep=0.25)), np.random.default_rng(0)
    assert isinstance(policy, SetPolicy)
    residual, scores = build_residual(LossConfig()), np.ones(512, np.float32)
    logits = torch.from_numpy(rng.normal(size=(512, classes)).astype(np.float32))
    targets = torch.arange(512) % classes
    uniform, due = set_coins(0, 0, 0, 128), np.zeros(512, bool)

    def choose_set() -> None:
        residuals = residual(logits, targets).numpy()
        policy.choose_set(scores, residuals, 128, uniform, strength=1.0, due=due)

    with one_core(), torch.inference_mode():
        rate = len(scores) / seconds_per_call(choose_set)
    return Row("selection", f"{name}, 128 of 512 of {classes} classes, with residuals", rate, "candidates/s")


def _forward_rate() -> float:
    """Candidates per second through a ResNet-18 for 32 x 32 pixels, in evaluation mode."""
    model = build_model(ModelConfig("resnet18_cifar"), num_classes=10, input_shape=(3, 32, 32), seed=0).eval()
    inputs = laid_out(torch.rand(64, 3, 32, 32), layout_of(model))
    with one_core(), torch.inference_mode():
        return len(inputs) / seconds_per_call(lambda: model(inputs), repeats=3)


def _row(what: str, config: SelectionConfig, at_least: float | None = None) -> Row:
    scores, classes = np.random.default_rng(0).exponential(size=512).astype(np.float32), np.arange(512) % 10
    example_ids = np.arange(512)
    policy = build_policy(config)
    policy.consider(
        # A full history, as in all but the first steps of a run.
        np.random.default_rng(1).exponential(size=config.history).astype(np.float32),
        np.arange(config.history) % 10,
    )

    def select() -> None:
        probability = policy.keep_probability(scores, classes, keep=1 / 3, strength=0.5)
        considered, _ = choose(policy.draw(probability, coins(0, 0, example_ids)), 10**9)
        policy.consider(scores[:considered], classes[:considered])

    with one_core():
        rate = len(scores) / seconds_per_call(select)
    return Row("selection", what, rate, "candidates/s", at_least=at_least)


def _predicted(num_examples: int, num_epochs: int) -> Row:
    """A reuse epoch by the Gaussian process: new scores, training, and predictions, all of everyone."""
    rng, example_ids = np.random.default_rng(0), np.arange(num_examples)
    usual = rng.normal(size=num_examples)
    columns = [np.exp(usual + rng.normal(size=num_examples)).astype(np.float32) for _ in range(num_epochs)]
    cache, numbers = ScoreCache(num_examples, every=2, by="gaussian", keep=1 / 3), count()

    def reuse() -> None:
        number = next(numbers)
        cache.remember(example_ids, columns[number % num_epochs], 2 * number)
        cache.recall(example_ids, 2 * number + 1)

    # The process has as many epochs to learn from as the row says.
    for _ in columns:
        reuse()
    with one_core():
        rate = num_examples / seconds_per_call(reuse)
    return Row(
        "selection", f"reuse by gaussian, {num_epochs} epochs of {num_examples:,}", rate, "candidates/s"
    )
