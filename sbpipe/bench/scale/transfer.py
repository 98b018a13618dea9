"""Weights of 10 MB to 10 GB to many selectors: what a publish costs the trainer, run as far as it fits here,
and how long a version takes to reach everybody, as arithmetic.

The model: each host pulls a version once (`weights/relay.py`) at the smaller of its own line and its share of
the trainer's, and no more than `WIRE` allows; then its selectors read it from memory. A version can follow
another when the last host has it, so the least interval is that time over a step's.
"""

import time

import torch
from torch import nn

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
WIRE = {"plain": 1.5e9, "CURVE": 2.1e8}
"""Bytes per second that one connection of ours carries, whatever the line: measured by `sbpipe bench link` on
two cores of a server; CURVE encrypts on one core.
"""


def measure_transfers() -> list[Row]:
    """Publishes that were run, then the arithmetic."""
    rows = [
        Row("scale", f"publish of {size:,} MB into memory", publish_ms(size), "ms of a core")
        for size in RUN_MB
    ]
    for size in ALL_MB:
        for gigabits in GIGABITS:
            seconds = arrival_s(size * 1e6, gigabits * 1e9 / 8, HOSTS, WIRE["CURVE"])
            name = f"{size:,} MB to {HOSTS} hosts at {gigabits} Gb/s under CURVE (arithmetic)"
            rows.append(Row("scale", name, seconds, "s"))
    return rows


def arrival_s(num_bytes: float, line: float, hosts: int, wire: float) -> float:
    """Seconds until all hosts have a version: the trainer's line is shared, so is its one sending thread."""
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
