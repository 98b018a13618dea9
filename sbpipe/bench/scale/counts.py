"""One to 256 selectors: the rows on their work, and on their cost to the loop.

How many leases a second the dispatcher can handle is measured in a flood: a loop whose steps take no time,
and that waits for whole batches. It is told by the wall, in which the simulated selectors and the loop have
their share of the same cores, and of the processor time of the dispatcher's thread.
"""

from sbpipe.bench.rows import Row
from sbpipe.bench.scale.fleet import BATCH, KEEP, WARM_UP, Found, run_fleet

COUNTS = (1, 4, 16, 64, 256)
STEP_S = 0.1
CAPACITY = 1.5
"""The candidates that all selectors score, over those that the loop needs."""
_STEPS = 60
_BAR_AT = 64
"""Selectors that the bars are for."""
FLOOD_BATCH = 256
"""Four of these are 64 leases of 64 candidates, one for each selector."""
_FLOOD_STEPS = 500


def measure_counts() -> list[Row]:
    """The table of fleets, what many selectors cost the loop, and the floods."""
    rows, found = [], dict[int, Found]()
    for count in COUNTS:
        found[count] = run_fleet(
            count, speed=CAPACITY * BATCH / KEEP / STEP_S / count, step_s=STEP_S, steps=_STEPS
        )
        rows += _fleet_rows(count, found[count])
    more, slower = (
        100 * (many - one) / STEP_S
        for many, one in (
            (found[_BAR_AT].cpu_s, found[1].cpu_s),
            (found[_BAR_AT].over_s, found[1].over_s),
        )
    )
    name = f"{_BAR_AT} selectors"
    rows += [
        Row("scale", f"{name}: step time over that with 1", slower, "%", at_most=1),
        Row("scale", f"{name}: the trainer's processor time over that with 1", more, "% of a step"),
    ]
    return rows + [row for count in COUNTS for row in measure_flood(count)]


def _fleet_rows(count: int, one: Found) -> list[Row]:
    name = f"{count} selectors, {CAPACITY} × what the loop needs"
    most_waste = 10 if count == _BAR_AT else None
    return [
        Row("scale", f"{name}: staleness", one.staleness, "steps"),
        Row("scale", f"{name}: the stalest", one.stalest, "steps"),
        Row("scale", f"{name}: filled", 100 * one.filled, "%"),
        Row("scale", f"{name}: the loop is idle", 100 * one.idle_s / one.wall_s, "%"),
        Row("scale", f"{name}: scored in vain", 100 * one.waste, "%", at_most=most_waste),
        Row("scale", f"{name}: a lease and its answer", one.lease_bytes, "bytes"),
    ]


def measure_flood(count: int) -> list[Row]:
    """The most work of the dispatcher for so many selectors."""
    found = run_flood(count, steps=_FLOOD_STEPS)
    name = f"{count} selectors that answer at once"
    at_least = 5000 if count == _BAR_AT else None
    return [
        Row("scale", name, found.leases / found.wall_s, "leases/s by the wall", at_least=at_least),
        Row("scale", name, found.leases / found.dispatch_s, "leases/s of the dispatcher's core"),
        Row("scale", f"{name}: a lease", found.candidates / found.leases, "candidates"),
        Row("scale", f"{name}: a lease and its answer", found.lease_bytes, "bytes"),
    ]


def run_flood(count: int, *, steps: int, warm_up: int = WARM_UP) -> Found:
    """As many leases as possible; with few selectors, longer ones."""
    given = {"train.batch_size": max(FLOOD_BATCH, 4 * count), "selection.late": "wait"}
    return run_fleet(count, speed=0.0, step_s=0.0, steps=steps, warm_up=warm_up, given=given)
