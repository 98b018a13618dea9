"""Numbers from files that may be damaged: only those that arithmetic and JSON can handle. Pure."""

from collections.abc import Mapping
from typing import Any, TypeGuard

LARGEST = 1e300
"""A damaged or hand-written JSON file may hold infinities, or integers that no float can hold."""


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is an ordinary number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def number(event: Mapping[str, Any], name: str) -> float | None:
    """A field as a number; None if it is anything else."""
    value = event.get(name)
    return value if is_number(value) else None
