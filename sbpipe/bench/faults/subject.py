"""What is trained under faults: the embedded digits, with switches that make a process misbehave.

A switch is a file in the folder that the environment names; who looks at an example looks for it. So a fault
begins in the middle of a run, in the process it is meant for. Without the folder it is a plain data set.
"""

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sbpipe.data.embedded import draw

FOLDER = "SBPIPE_FAULTS"
NUM_EXAMPLES, NUM_TESTS, EPOCHS = 4000, 500, 30
JOB: dict[str, Any] = {
    "data.examples": NUM_EXAMPLES,
    "data.test_examples": NUM_TESTS,
    "model.options": {"width": 8},
    "train.batch_size": 64,
    "train.steps": 0,
    "train.epochs": float(EPOCHS),
    "train.threads": 1,
    "selector.threads": 1,
    "checkpoint.every": 50,
    "eval.every": 0.0,
}
SWITCHED: dict[str, Any] = {"data.name": "sbpipe.bench.faults.subject:make"}
SPIN, NAN, SLOW_TESTS, EVALUATING = "spin", "nan", "slow-tests", "evaluating"


class Digits:
    """Map-style, as a user's own."""

    num_classes = 10

    def __init__(self, split: str, count: int) -> None:
        arrays = draw(split, count, 0)
        self._images, self._labels = torch.from_numpy(arrays["images"]), arrays["labels"]
        self._is_test = split == "test"
        folder = os.environ.get(FOLDER)
        self._folder = Path(folder) if folder else None

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """An image and its class, unless a switch is on."""
        image = self._images[index].float() / 255.0
        if self._folder is None:
            return image, int(self._labels[index])
        if self._is_test:
            (self._folder / EVALUATING).touch()
            while (self._folder / SLOW_TESTS).exists():
                time.sleep(0.01)
        # Every few hundred examples: a process that spins must do so until it is killed.
        elif index % 256 == 0 and self._is_selector:
            while (self._folder / SPIN).exists():
                pass
        if index % 100 == 7 and (self._folder / NAN).exists():
            image = torch.full_like(image, float("nan"))
        return image, int(self._labels[index])

    @property
    def _is_selector(self) -> bool:
        return b"selector" in Path("/proc/self/cmdline").read_bytes().split(b"\0")


def make() -> tuple[Digits, Digits]:
    """`data.name = "sbpipe.bench.faults.subject:make"`."""
    return Digits("train", NUM_EXAMPLES), Digits("test", NUM_TESTS)
