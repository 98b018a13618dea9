"""`sbpipe bench scale`: many selectors, many examples, large weights.

The ledger, the wire, the ranks' groups and the trainer's threads are the real ones; devices are simulated, so
that hundreds of them fit here. What cannot be run on this machine is arithmetic of a stated model, and its
rows say so.
"""

from sbpipe.bench.rows import Row


def measure() -> list[Row]:
    """Everything."""
    # Imported here: the simulated selectors are a program of this room, and need only a part of it.
    from sbpipe.bench.scale.counts import measure_counts
    from sbpipe.bench.scale.memory import measure_memory
    from sbpipe.bench.scale.ranks import measure_ranks
    from sbpipe.bench.scale.transfer import measure_transfers

    return [*measure_memory(), *measure_counts(), *measure_ranks(), *measure_transfers()]
