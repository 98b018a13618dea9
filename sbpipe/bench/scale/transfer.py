"""Weights of 10 MB to 10 GB to many selectors: what a publish costs the trainer, run as far as it fits here,
and how long a version takes to reach everybody, as arithmetic.

The model: each host pulls a version once (`weights/relay.py`), all share the trainer's line, and together are
no faster than one connection of ours under CURVE, as measured here: one thread encrypts for all. Then the
selectors of a host read it from memory. A version can follow another when the last host has it, so the least
interval is that time over a step's.
"""

import time

import torch
from torch import nn

from sbpipe.bench import link
from sbpipe.bench.rows import Row
from sbpipe.models import parts_of
from sbpipe.records import Part
from sbpipe.runs.spans import Spans
from sbpipe.weights.manifest import build_manifest
from sbpipe.weights.publisher import Publisher
from sbpipe.weights.slots import Slots

RUN_MB = (10, 100, 1000)
ALL_MB = (10, 100, 1000, 10_000)
GIGABITS = (1, 10, 100)
HOSTS = 8


def measure_transfers() -> list[Row]:
    """Publishes that were run, then the arithmetic."""
    rows = [
        Row("scale", f"publish of {size:,} MB into memory", publish_ms(size), "ms of a core")
        for size in RUN_MB
    ]
    wire = next(row for row in link.measure() if row.unit == "MB/s" and row.what.endswith("CURVE"))
    rows.append(Row("scale", wire.what, wire.value, wire.unit))
    for size in ALL_MB:
        for gigabits in GIGABITS:
            seconds = arrival_s(size * 1e6, line=gigabits * 1e9 / 8, hosts=HOSTS, wire=wire.value * 1e6)
            name = f"{size:,} MB to {HOSTS} hosts at {gigabits} Gb/s under CURVE (arithmetic)"
            rows.append(Row("scale", name, seconds, "s"))
    return rows


def arrival_s(num_bytes: float, *, line: float, hosts: int, wire: float) -> float:
    """Seconds until all hosts have a version: they share the trainer's line, and its one sending thread."""
    return num_bytes * hosts / min(line, wire)


def publish_ms(megabytes: int) -> float:
    """Processor time of one publish of so many megabytes into a slot."""
    model = nn.Linear(1000, megabytes * 250, bias=False)
    manifest = build_manifest(model, parts_of(model), "fp32")
    slots = Slots.create(manifest.num_bytes, num_slots=3)
    publisher = Publisher(model, manifest, slots, Spans(), [], lambda part, version, is_late: None)
    try:
        times = []
        with torch.inference_mode():
            for version in range(4):
                begin = time.process_time()
                publisher.publish_due(version, {Part.WHOLE: 1})
                times.append(time.process_time() - begin)
        return 1e3 * min(times)
    finally:
        publisher.close()
        slots.close()
