"""What a run says of how busy its device was, beside the truth of the simulated one.

    PYTHONPATH=tests:tests/simulated/plugin python -m support.busy
    PYTHONPATH=tests:tests/simulated/plugin python -m support.busy --slowness 1 12 --steps 60 --kernel-us 300

With fixed kernels the truth does not depend on what else the machine does; by default it does, for so does
what the values of a kernel take the CPU.

The trainer is this process, on `sim:0`; its selector another one, on `sim:1`. The exit code is 1 where a
share is further from the truth than `--within`.
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

MODEL: dict[str, Any] = {"model__name": "small_resnet", "train__batch_size": 32, "data__examples": 4096}


class Compared(NamedTuple):
    """A run on a device so many times slower than its host: shares of the loop's time."""

    slowness: float
    said: float
    truth: float
    gaps: float
    launch_bound: float
    steps_per_s: float


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


def compare(slowness: float, steps: int, folder: Path, **changes: Any) -> Compared:
    """Train so many steps, and set what the summary says beside what the device knows."""
    given = MODEL | {"model__options": {}, "selection__keep": 0.5, "selector__precision": "fp32"} | changes
    config = small(train__device="sim:0", selector__device="sim:1", train__steps=steps, **given)
    simulated.set_slowness(0, slowness)
    with first_batch() as began:
        seen = train(config, folder / f"at-{slowness:g}")
    (busy_before, before), (busy_after, after) = began[0], seen.device_s[-1]
    truth = min(1.0, (busy_after - busy_before) / (after - before))
    numbers = [seen.summary[f"trainer.{name}_ratio"] for name in ("busy", "gap", "launch")]
    return Compared(slowness, numbers[0], truth, *numbers[1:], steps_per_s=(steps - 1) / (after - before))


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
    parser.add_argument("--within", type=float, default=0.05, help="of the truth")
    parser.add_argument("--json", type=Path, help="where to leave the rows")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    simulated.load()
    simulated.set_kernel_s(0, None if args.kernel_us is None else 1e-6 * args.kernel_us)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for slowness in args.slowness:
            row = compare(slowness, args.steps, Path(folder), train__batch_size=args.batch_size)
            rows.append(row._asdict())
            sys.stdout.write(
                f"{slowness:4g} x slower: busy {row.said:.3f}, truth {row.truth:.3f}; "
                f"gaps {row.gaps:.3f}, launch-bound {row.launch_bound:.2f}, {row.steps_per_s:.2f} steps/s\n"
            )
            sys.stdout.flush()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(abs(row["said"] - row["truth"]) > args.within * row["truth"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
