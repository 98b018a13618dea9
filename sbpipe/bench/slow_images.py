"""A data set of random images that are slow to load, for `bench waiting`."""

import time

import torch
from torch import Tensor

SECONDS = 3e-4
"""Per image. With three or four candidates per trained example, loading them takes longer than a step."""


class SlowImages:
    """Map-style, as a user's own."""

    num_classes = 10

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
        self._targets = torch.randint(0, 10, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """An image and its class, after a while."""
        time.sleep(SECONDS)
        return self._images[index], int(self._targets[index])


def make() -> tuple[SlowImages, SlowImages]:
    """`data.name = "sbpipe.bench.slow_images:make"`."""
    return SlowImages(6000, 0), SlowImages(200, 1)
