"""What scoring was measured to do: a table, bars, and plain values. It must not know how it is measured."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sbpipe.bench.rows import Row, cells_table

REFERENCE = 64
"""The batch size that bars are of."""


@dataclass(frozen=True)
class Scored:
    """One precision at one batch size."""

    model: str
    precision: str
    batch_size: int
    examples_per_s: float
    ratio_to_fp32: float
    spearman: float
    refresh_ms: float
    fast_refresh_ms: float
    memory_mb: float


def bars(rows: Sequence[Scored]) -> list[Row]:
    """What the table says of what is promised."""
    found: list[Row] = []
    for model in dict.fromkeys(row.model for row in rows):
        at = {row.precision: row for row in rows if row.model == model and row.batch_size == REFERENCE}
        if not {"fp32", "fp32 as it is"} <= set(at):
            continue
        others = max(row.examples_per_s for name, row in at.items() if name.startswith("fp32 "))
        found.append(
            Row(
                "scoring",
                f"{model}: fp32 / best other fp32",
                at["fp32"].examples_per_s / others,
                "x",
                at_least=1.0,
            )
        )
        if "int8" in at:
            found += _int8_bars(model, at["int8"], at["fp32 as it is"])
    return found


def _int8_bars(model: str, int8: Scored, plain: Scored) -> list[Row]:
    is_large = model == "resnet18_cifar"
    between_s = 8 * 4 * 128 / int8.examples_per_s
    return [
        Row(
            "scoring",
            f"{model}: int8 / fp32 as it is",
            int8.examples_per_s / plain.examples_per_s,
            "x",
            at_least=1.75 if is_large else None,
        ),
        Row("scoring", f"{model}: Spearman of int8 with fp32", int8.spearman, "", at_least=0.98),
        Row("scoring", f"{model}: int8 refresh", int8.refresh_ms, "ms", at_most=120.0 if is_large else None),
        Row(
            "scoring",
            f"{model}: refresh / time between pushes, interval 8",
            int8.refresh_ms / 1e3 / between_s,
            "",
            at_most=0.1,
        ),
    ]


def precisions_table(rows: Sequence[Scored]) -> str:
    """For people."""
    head = (
        "model",
        "precision",
        "batch",
        "examples/s",
        "to fp32",
        "Spearman",
        "refresh ms",
        "norms only",
        "memory MB",
    )
    return cells_table([head, *(_cells(row) for row in rows)])


def _cells(row: Scored) -> tuple[str, ...]:
    numbers = (f"{row.examples_per_s:,.0f}", f"{row.ratio_to_fp32:.2f}", f"{row.spearman:.4f}")
    times = (f"{row.refresh_ms:.1f}", f"{row.fast_refresh_ms:.2f}", f"{row.memory_mb:.0f}")
    return (row.model, row.precision, str(row.batch_size), *numbers, *times)


def to_dicts(rows: Sequence[Scored]) -> list[dict[str, Any]]:
    """For programs; what could not be measured is null."""
    return [
        {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in asdict(row).items()
        }
        for row in rows
    ]
