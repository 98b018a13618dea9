"""Thumbnails of examples for the report. The run is done by then, so an error here is only logged."""

import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbpipe.errors import SbpipeError
from sbpipe.records import Ids
from sbpipe.runs.names.files import EXAMPLES
from sbpipe.trainer.evaluation import answers
from sbpipe.trainer.record.census import Census
from sbpipe.trainer.setup import Setup

log = logging.getLogger("sbpipe.trainer")


def leave_examples(census: Census, folder: Path, setup: Setup) -> None:
    """Write what is known of every example, with pictures of the extreme ones; an error is only logged."""

    def show(example_ids: Ids) -> tuple[NDArray[np.uint8] | None, NDArray[np.int64], NDArray[np.int64]]:
        if not len(example_ids):
            return None, np.empty(0, np.int64), np.empty(0, np.int64)
        inputs, targets = setup.data.score.batch(example_ids, 0)
        if setup.data.has_trees or setup.train_step.is_sharded:
            unknown = np.full(len(example_ids), -1, np.int64)
            return None, unknown, unknown
        return thumbnails(inputs.float().cpu().numpy()), *answers(setup.train_step.judged, inputs, targets)

    try:
        census.write(folder, show)
    except (OSError, RuntimeError, MemoryError, SbpipeError) as error:
        log.warning("no %s for the report (%s)", EXAMPLES, error)


def thumbnails(inputs: NDArray[np.float32]) -> NDArray[np.uint8] | None:
    """Images (n, channels, height, width) as bytes, each stretched to 0 to 255; None if they
    are no images.
    """
    if inputs.ndim != 4 or inputs.shape[1] not in (1, 3):
        return None
    low, high = inputs.min(axis=(1, 2, 3), keepdims=True), inputs.max(axis=(1, 2, 3), keepdims=True)
    stretched = (inputs - low) / np.maximum(high - low, 1e-9) * 255.0
    images: NDArray[np.uint8] = stretched.round().astype(np.uint8).transpose(0, 2, 3, 1)
    return images
