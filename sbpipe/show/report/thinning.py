"""Long series made short enough to draw. Pure functions over lists; knows neither events nor charts."""

import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def thin(series: Sequence[T], most: int) -> list[T]:
    """At most `most` elements of a series, evenly spaced, the first and the last among them; all of them if
    they are few.
    """
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


def bucket_means(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """At most `most` rows: each the mean of an equal stretch, key by key over the numbers there; words are
    the first row's.
    """
    if len(rows) <= most:
        return list(rows)
    return [_mean_row(stretch) for stretch in stretches(rows, most)]


def thinning_note(num_all: int, num_kept: int, what: str, how: str = "evenly spaced") -> tuple[str, ...]:
    """The note of a chart that shows fewer than there are; () if it shows all."""
    return (f"{num_kept:,} of {num_all:,} {what} are drawn ({how}).",) if num_kept < num_all else ()


def _mean_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    mean: dict[str, Any] = {}
    for key, first in rows[0].items():
        numbers = [row[key] for row in rows if isinstance(row.get(key), int | float)]
        mean[key] = sum(numbers) / len(numbers) if numbers else first
    return mean
