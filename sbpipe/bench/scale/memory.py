"""What the trainer holds of 10^5 to 10^9 examples, beyond model and data: the stream with a full score table,
and a checkpoint of it being written.
"""

import tracemalloc

import numpy as np

from sbpipe.bench.rows import Row
from sbpipe.config import resolve
from sbpipe.records import Selection
from sbpipe.trainer.checkpoint_file import frozen
from sbpipe.trainer.record.census import Census
from sbpipe.trainer.stream.stream import Stream

SIZES = (10**5, 10**7, 10**9)
MOST_MB = 500.0
_AT_ONCE = 2**17


def measure_memory() -> list[Row]:
    """The greatest sum of all that was held at a time."""
    return [
        Row(
            "scale",
            f"trainer's memory of {size:.0e} examples",
            held_mb(size),
            "MB",
            at_most=MOST_MB if size == max(SIZES) else None,
        )
        for size in SIZES
    ]


def held_mb(num_examples: int) -> float:
    """Fill the table as an epoch does, and gather a checkpoint."""
    tracemalloc.start()
    try:
        stream = Stream(resolve({"train.steps": 10}), num_examples)
        census = Census(stream.table, None, 0)
        rows = len(stream.table.scores)
        # Twice as many candidates as rows: of a large data set some rows are taken over.
        for start in range(0, min(2 * rows, num_examples), _AT_ONCE):
            ids = stream.order.ids(0, start, min(start + _AT_ONCE, num_examples))
            scores = np.ones(len(ids), np.float32)
            kept = np.arange(0, len(ids), 4, dtype=np.int32)
            stream.table.record(ids, Selection(0, 0, scores, kept, scores))
            stream.table.settle()  # as the dispatcher does once a turn
        census.take()
        state = frozen(stream.state())
        del state
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()
