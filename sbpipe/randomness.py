"""Random numbers as a pure function of (seed, purpose, epoch, example_id), equal in every process.

No state; the global generators are seeded only for code of others that draws from them. The mixing is written
with operators that NumPy int64 arrays and torch int64 tensors share (both wrap on overflow), so one function
serves the CPU's selection and the device's views. It must not know what it is used for.
"""

import hashlib
import threading
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

GLOBAL_GENERATORS = threading.RLock()
"""Held while the global generators are seeded and used, for code that has no others (transforms)."""

IntArray = TypeVar("IntArray", NDArray[np.int64], torch.Tensor)

# The multipliers of the splitmix64 finaliser (Steele et al., 2014), as signed 64-bit numbers.
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9 - 2**64
_MULTIPLIER_2 = 0x94D049BB133111EB - 2**64


def key(seed: int, purpose: str, *counters: int) -> int:
    """A signed 64-bit key for one stream of random numbers."""
    text = ":".join([purpose, str(seed), *map(str, counters)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def mix(counters: IntArray, stream_key: int) -> IntArray:
    """64 random bits for each counter, as int64."""
    bits = (counters ^ stream_key) * _MULTIPLIER_1
    bits = (bits ^ _shift_right(bits, 29)) * _MULTIPLIER_2
    bits = (bits ^ _shift_right(bits, 32)) * _MULTIPLIER_1
    return bits ^ _shift_right(bits, 30)


def uniform(example_ids: NDArray[np.int64], stream_key: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each example, with 53 random bits."""
    # The upper 53 bits, as many as a double holds, so that no number is rounded up to 1.
    return _shift_right(mix(example_ids, stream_key), 11).astype(np.float64) * 2.0**-53


def below(counters: IntArray, stream_key: int, limit: int) -> IntArray:
    """A whole number in [0, limit) for each counter; limit at most 2^20, so the bias stays under 2^-11."""
    # Multiply and shift (Lemire): no remainder, and with 31 bits times 2^20 nothing overflows int64.
    return (_shift_right(mix(counters, stream_key), 33) * limit) >> 31


def _shift_right(bits: IntArray, count: int) -> IntArray:
    # A shift of signed integers extends the sign; the mask makes it the logical shift of splitmix64.
    return (bits >> count) & ((1 << (64 - count)) - 1)
