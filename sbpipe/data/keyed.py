"""One example of a map-style data set as a pure function of (seed, epoch, id); runs in loader processes.

Random transforms draw from the global generators of random, numpy and torch, so these are seeded for each
example and restored afterwards. It must not know how requests reach it nor where the tensors go.
"""

import random
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from sbpipe import randomness
from sbpipe.errors import DataError


class Example(NamedTuple):
    """One example as tensors."""

    inputs: torch.Tensor
    target: torch.Tensor


class Items(NamedTuple):
    """Some examples, stacked in the requested order."""

    inputs: torch.Tensor
    targets: torch.Tensor


class KeyedDataset:
    """A map-style data set whose examples depend on (seed, epoch, example_id) alone.

    The seeding does not reach a transform with its own generator, or one that uses the system's entropy.
    """

    def __init__(self, dataset: Any, *, seed: int, name: str, like: Example | None = None) -> None:
        self.dataset = dataset
        self.seed = seed
        self.name = name
        self.like = like

    def items(self, wanted: Sequence[tuple[int, int]]) -> Items:
        """The examples of some (example_id, epoch) pairs, at least one."""
        # The lock is against other threads of this process, which use the same generators.
        with randomness.GLOBAL_GENERATORS, own_generators():
            examples = [self._example(example_id, epoch) for example_id, epoch in wanted]
        return self._stacked(examples, [example_id for example_id, _ in wanted])

    def _example(self, example_id: int, epoch: int) -> Example:
        seed_generators(randomness.key(self.seed, "data.transform", epoch, example_id))
        name = f"{self.name} example {example_id}"
        try:
            return as_example(self.dataset[example_id], name)
        except DataError:
            raise
        # A user's code may raise anything. Sent as text, because not every exception can be pickled.
        except Exception as error:
            raise DataError(
                f"{name} could not be read by the data set itself:\n{traceback.format_exc()}"
            ) from error

    def _stacked(self, examples: Sequence[Example], example_ids: Sequence[int]) -> Items:
        like = self.like or examples[0]
        for example, example_id in zip(examples, example_ids, strict=True):
            for part, value, expected in zip(("input", "target"), example, like, strict=True):
                if value.shape != expected.shape or value.dtype != expected.dtype:
                    raise DataError(
                        f"{self.name} example {example_id} has the {part} {_description(value)}, but the "
                        f"first one {_description(expected)}. "
                        f"Make all {part}s alike, for instance with a resize or a pad in the data set"
                    )
        return Items(
            torch.stack([example.inputs for example in examples]),
            torch.stack([example.target for example in examples]),
        )


@contextmanager
def own_generators() -> Iterator[None]:
    """Restore the global generators of random, numpy and torch (CPU) afterwards."""
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)


def seed_generators(stream_key: int) -> None:
    """Seed the global generators of random, numpy and torch (CPU only, not the accelerators')."""
    random.seed(stream_key)
    # numpy's global generator takes 32 bits.
    np.random.seed(stream_key & 0xFFFFFFFF)
    # Not torch.manual_seed: it seeds accelerators too, which a forked process must not touch.
    torch.default_generator.manual_seed(stream_key)


def as_example(item: Any, name: str) -> Example:
    """The (input, target) pair of a data set, as tensors.

    Images become uint8 CHW (in HWC the last axis is shorter than the first), whole targets become int64, and
    float64 becomes float32; any other input stays unchanged.
    """
    form = (
        "Each item must be a pair (input, target) of a tensor, array or PIL image and a class number or "
        "tensor"
    )
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise DataError(f"{name} is {_description(item)}: not a pair. {form}")
    inputs, target = (_as_tensor(value) for value in item)
    if inputs is None or inputs.ndim == 0:
        raise DataError(f"{name} has the input {_description(item[0])}. {form}")
    if target is None:
        raise DataError(f"{name} has the target {_description(item[1])}. {form}")
    if inputs.dtype == torch.uint8:
        inputs = _as_chw(inputs, name)
    return Example(inputs, target if target.is_floating_point() else target.to(torch.int64))


def _as_tensor(value: Any) -> torch.Tensor | None:
    # A PIL image is recognised by its methods, because PIL may not be installed.
    if hasattr(value, "getbands") and hasattr(value, "convert"):
        value = np.array(value if value.mode in ("L", "RGB") else value.convert("RGB"))
    if isinstance(value, (bool, int, float, np.number)) or (
        isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    ):
        value = torch.tensor(value)
    if not isinstance(value, torch.Tensor):
        return None
    # numpy turns Python numbers into float64, which no float32 model takes.
    return value.detach().to(torch.float32) if value.dtype == torch.float64 else value.detach()


def _as_chw(image: torch.Tensor, name: str) -> torch.Tensor:
    if image.ndim == 2:
        return image[None]
    if image.ndim != 3 or 0 in image.shape:
        raise DataError(
            f"{name} has the input {_description(image)}: uint8 inputs are images. Give them the shape CHW, "
            "or make them float32"
        )
    return image.permute(2, 0, 1) if image.shape[2] < image.shape[0] else image


def _description(value: Any) -> str:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {str(value)[:40]!r}"
