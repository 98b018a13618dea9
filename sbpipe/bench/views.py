"""The data path: gather by id and view (crop, flip, cutout, normalise) of 32×32×3 images, on one core."""

import numpy as np
import torch

from sbpipe.bench.rows import Row, one_core, seconds_per_call
from sbpipe.config import DataConfig, ViewConfig
from sbpipe.data import Order, load_data


def measure() -> list[Row]:
    """Examples per second, for the batches of trainer and selector, and ids of a large epoch's order."""
    view = ViewConfig(crop=4, flip=True, cutout=16)
    data = load_data(DataConfig(), view, seed=0, device=torch.device("cpu"))
    rows = []
    with one_core():
        for size in (128, 512):
            example_ids = np.random.default_rng(size).permutation(data.train.num_examples)[:size]
            rate = size / seconds_per_call(lambda ids=example_ids: data.train.batch(ids, 1))  # type: ignore[misc]
            rows.append(
                Row("views", f"crop, flip, cutout, normalise, batch {size}", rate, "examples/s", at_least=1e5)
            )
        # The order is computed, not stored: a billion examples must cost no memory and no start-up.
        order = Order(10**9, seed=0)
        took = seconds_per_call(lambda: order.ids(3, 5 * 10**8, 5 * 10**8 + 384))
    rows.append(Row("views", "384 ids of an order of 10^9", took * 1e3, "ms"))
    return rows
