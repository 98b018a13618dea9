"""Selection beside the forward pass: history, cdf, policy, coin and choice, on one core."""

import numpy as np

from sbpipe.bench.rows import Row, one_core, seconds_per_call
from sbpipe.config import SelectionConfig
from sbpipe.selection import build_policy, choose, coins


def measure() -> list[Row]:
    """Candidates per second through the whole of selection, for two history sizes."""
    rows = []
    scores = np.random.default_rng(0).exponential(size=512).astype(np.float32)
    example_ids = np.arange(512)
    for history, bar in ((1024, None), (4096, 2e6)):
        policy = build_policy(SelectionConfig(policy="sb", history=history))
        policy.consider(np.random.default_rng(1).exponential(size=history).astype(np.float32))

        def select(policy=policy) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
            considered, _ = choose(policy.keep_probability(scores), coins(0, 0, example_ids), 10**9)
            policy.consider(scores[:considered])

        with one_core():
            rate = len(scores) / seconds_per_call(select)
        rows.append(Row("selection", f"sb, history {history}", rate, "candidates/s", at_least=bar))
    return rows
