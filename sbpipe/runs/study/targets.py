"""The errors that runs are timed to. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FACTORS = (1.1, 1.2, 1.4)
"""Target errors as factors of a reference error, as in the paper's Table 1."""


@dataclass(frozen=True)
class Target:
    """An error to be reached."""

    factor: float
    error: float


def target_error(factor: float, reference: float | None) -> float | None:
    """A target error; None without a reference, and from 100 % on, which every run is below."""
    return None if reference is None or factor * reference >= 1.0 else factor * reference


def targets_of(factors: Sequence[float], reference: float | None) -> list[dict[str, Any]]:
    """Each factor with its error, as `results.json` holds them."""
    return [{"factor": factor, "error": target_error(factor, reference)} for factor in factors]
