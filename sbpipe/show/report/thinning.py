"""Long series made short enough to draw. Pure functions over lists; knows neither events nor charts."""

import itertools
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


def stretches(series: Sequence[T], count: int) -> list[Sequence[T]]:
    """A series cut into at most `count` pieces of equal length, in order, none of them empty."""
    edges = [k * len(series) // count for k in range(count + 1)]
    return [series[begin:end] for begin, end in itertools.pairwise(edges) if end > begin]


def thinning_note(num_all: int, num_kept: int, what: str, how: str = "evenly spaced") -> tuple[str, ...]:
    """The note of a chart that shows fewer than there are; () if it shows all."""
    return (f"{num_kept:,} of {num_all:,} {what} are drawn ({how}).",) if num_kept < num_all else ()
