"""What a run says of how busy its devices were, beside the truth of the simulated ones.

    PYTHONPATH=.:tests:tests/simulated/plugin python -m support.busy
    PYTHONPATH=.:tests:tests/simulated/plugin python -m support.busy --slowness 1 12 --steps 60

A kernel takes a device what the first of its kind took the CPU, times its slowness: so the truth does not
depend on what else the machine does. With `--changing` it does: each takes what its own values take the CPU.

The trainer is this process, on `sim:0`; its selector another one, on `sim:1`. The exit code is 1 where the
trainer's share is further from the truth than `--within`.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import simulated
import torch
from simulated.roles import train

from sbpipe.trainer.record.telemetry import Telemetry
from support.runs import small

MODEL: dict[str, Any] = {
    "model__name": "small_resnet",
    "model__options": {},
    "train__batch_size": 32,
    "data__examples": 4096,
    "selection__keep": 0.5,
    # Not auto: what is measured between leases is no answer to one.
    "selector__precision": "fp32",
    "selector__batch_size": 32,
}


class Devices(NamedTuple):
    """How both devices behave."""

    slowness: float = 1.0
    """So many times slower than their hosts."""
    kernel_s: float | None = None
    """What every kernel takes, times the slowness."""
    keeps_costs: bool = True
    """Else: whether kernels of one kind take the same time."""

    def behave(self) -> None:
        """From here on, in this process."""
        simulated.load()
        for index in range(2):
            simulated.set_slowness(index, self.slowness)
            simulated.set_kernel_s(index, self.kernel_s)
            simulated.keep_costs(index, self.keeps_costs)


class Compared(NamedTuple):
    """A run on such devices: shares of the loop's time; of the selector, seconds of its answers."""

    slowness: float
    said: float
    truth: float
    error: float
    """How far off it may be, as it says itself."""
    gaps: float
    launch_bound: float
    steps_per_s: float
    answering_said_s: float
    answering_s: float


@contextmanager
def first_batch() -> Iterator[list[tuple[float, float]]]:
    """Of a run meanwhile: how long its device was busy, and on its clock, when it began to count."""
    begin, found = Telemetry.begin, list[tuple[float, float]]()

    def noted(self: Telemetry) -> None:
        found.append((simulated.busy_s(0), simulated.elapsed_s(0)))
        begin(self)

    Telemetry.begin = noted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Telemetry.begin = begin  # type: ignore[method-assign]


def compare(devices: Devices, steps: int, folder: Path, **changes: Any) -> Compared:
    """Train so many steps, and set what the summary says beside what the devices know."""
    config = small(train__device="sim:0", selector__device="sim:1", train__steps=steps, **MODEL | changes)
    devices.behave()
    with first_batch() as began:
        seen = train(config, folder / f"at-{devices.slowness:g}", devices.behave)
    (busy_before, before), (busy_after, after) = began[0], seen.device_s[-1]
    said = {name: seen.summary[f"trainer.{name}"] for name in ("busy_ratio", "busy_error", "gap_ratio")}
    return Compared(
        devices.slowness,
        said["busy_ratio"],
        min(1.0, (busy_after - busy_before) / (after - before)),
        said["busy_error"],
        said["gap_ratio"],
        seen.summary["trainer.launch_ratio"],
        (steps - 1) / (after - before),
        *seen.answering_s,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each slowness."""
    parser = argparse.ArgumentParser(prog="python -m support.busy")
    parser.add_argument("--slowness", type=float, nargs="+", default=[1.0, 3.0, 12.0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=MODEL["train__batch_size"])
    parser.add_argument(
        "--kernel-us",
        type=float,
        help="what every kernel takes the device, times its slowness (default: what its values take the CPU)",
    )
    parser.add_argument("--changing", action="store_true", help="kernels of one kind differ, as on the CPU")
    parser.add_argument("--within", type=float, default=0.05, help="of the truth")
    parser.add_argument("--json", type=Path, help="where to leave the rows")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    kernel_s = None if args.kernel_us is None else 1e-6 * args.kernel_us
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for slowness in args.slowness:
            devices = Devices(slowness, kernel_s, not args.changing)
            row = compare(devices, args.steps, Path(folder), train__batch_size=args.batch_size)
            rows.append(row._asdict())
            sys.stdout.write(
                f"{slowness:4g} x slower: busy {row.said:.3f} +- {row.error:.3f}, truth {row.truth:.3f}; "
                f"gaps {row.gaps:.3f}, launch-bound {row.launch_bound:.2f}, {row.steps_per_s:.2f} steps/s; "
                f"selector {row.answering_said_s:.2f} s, truth {row.answering_s:.2f} s\n"
            )
            sys.stdout.flush()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(abs(row["said"] - row["truth"]) > args.within * row["truth"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
