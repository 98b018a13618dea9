"""Makes long series short enough to draw. Pure functions on lists; knows neither events nor charts."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def thin(series: Sequence[T], most: int) -> list[T]:
    """At most `most` elements of a series, evenly spaced, the first and the last among them."""
    if most < 1:
        raise ValueError(f"most = {most}: at least one element must stay")
    if len(series) <= most:
        return list(series)
    if most == 1:
        return [series[-1]]
    return [series[k * (len(series) - 1) // (most - 1)] for k in range(most)]


def stretches_by_weight(series: Sequence[T], weights: Sequence[int], count: int) -> list[list[T]]:
    """A series cut into at most `count` non-empty pieces of about equal weight, in order."""
    total, pieces, before = sum(weights), dict[int, list[T]](), 0
    for one, weight in zip(series, weights, strict=True):
        # It goes to the last piece that begins at or before it: piece k begins at weight k * total // count.
        pieces.setdefault(((before + 1) * count - 1) // total, []).append(one)
        before += weight
    return list(pieces.values())


def thinning_note(num_all: int, num_kept: int, what: str, how: str = "evenly spaced") -> tuple[str, ...]:
    """The note of a chart that shows fewer than there are; () if it shows all."""
    return (f"{num_kept:,} of {num_all:,} {what} are drawn ({how}).",) if num_kept < num_all else ()
