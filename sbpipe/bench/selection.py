"""Selection beside the forward pass: history, cdf, policy, coin and choice, on one core."""

from itertools import count

import numpy as np

from sbpipe.bench.rows import Row, one_core, seconds_per_call
from sbpipe.config import SelectionConfig
from sbpipe.selection import ScoreCache, build_policy, choose, coins


def measure() -> list[Row]:
    """Candidates per second through the whole of selection."""
    return [
        _row("sb, history 1024", SelectionConfig(policy="sb", history=1024)),
        _row("sb, history 4096", SelectionConfig(policy="sb", history=4096), at_least=2e6),
        _row("steady, history 1024", SelectionConfig(policy="steady", history=1024)),
        *(_row(f"{name}, history 1024", SelectionConfig(policy=name, history=1024)) for name in ("kath18", "rank", "topk")),
        _row("steady by class (10), history 1024", SelectionConfig(policy="steady", history=1024, history_by="class")),
        _predicted(50_000, 8),
    ]


def _row(what: str, config: SelectionConfig, at_least: float | None = None) -> Row:
    scores, classes = np.random.default_rng(0).exponential(size=512).astype(np.float32), np.arange(512) % 10
    example_ids = np.arange(512)
    policy = build_policy(config)
    policy.consider(np.random.default_rng(1).exponential(size=config.history).astype(np.float32), np.arange(config.history) % 10)

    def select() -> None:
        probability = policy.keep_probability(scores, classes, strength=0.5)
        considered, _ = choose(policy.draw(probability, coins(0, 0, example_ids)), 10**9)
        policy.consider(scores[:considered], classes[:considered])

    with one_core():
        rate = len(scores) / seconds_per_call(select)
    return Row("selection", what, rate, "candidates/s", at_least=at_least)


def _predicted(num_examples: int, num_epochs: int) -> Row:
    """A reuse epoch by the Gaussian process: new scores of everyone, training, and the prediction of everyone."""
    rng, example_ids = np.random.default_rng(0), np.arange(num_examples)
    usual = rng.normal(size=num_examples)
    columns = [np.exp(usual + rng.normal(size=num_examples)).astype(np.float32) for _ in range(num_epochs)]
    cache, numbers = ScoreCache(num_examples, every=2, by="gaussian", keep=1 / 3), count()

    def reuse() -> None:
        number = next(numbers)
        cache.remember(example_ids, columns[number % num_epochs], 2 * number)
        cache.recall(example_ids, 2 * number + 1)

    for _ in columns:
        reuse()
    with one_core():
        rate = num_examples / seconds_per_call(reuse)
    return Row("selection", f"reuse by gaussian, {num_epochs} epochs of {num_examples:,}", rate, "candidates/s")
