"""Up to eight ranks of a trainer: what it costs rank 0's loop to tell the others which examples come next
and what to do with them, and to gather the losses of the global batch.

The ranks are processes on gloo, with the groups and steps of a run; their devices are simulated by waiting.
In turn with these steps, in the same processes, others only average the same gradients: the difference is
what the ranks say to each other.

`python -m sbpipe.bench.scale.ranks RANK RANKS FOLDER` is one rank; rank 0 leaves what it found in the folder.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from sbpipe.bench.rows import Row
from sbpipe.config import Config, resolve
from sbpipe.records import Ids
from sbpipe.runs.spans import Spans
from sbpipe.trainer.ranks.follower import Ahead
from sbpipe.trainer.ranks.group import Group
from sbpipe.trainer.ranks.step import RankedStep, SharedSplit, load_share
from sbpipe.trainer.step import TrainStep

COUNTS = (2, 4, 8)
BATCH, STEP_S = 128, 0.05
_ROUNDS, _EACH = 5, 10
"""Rounds of so many steps of either kind; the first one warms up."""
_WAIT_S = 600.0
_FOUND = "found.json"
_WIDTH = 8


def measure_ranks() -> list[Row]:
    """With one rank there is no other rank to tell."""
    return [row for count in COUNTS for row in _rows(count, run_ranks(count))]


def _rows(count: int, found: dict[str, float]) -> list[Row]:
    more_s = found["step_s"] - found["bare_s"]
    return [
        Row("scale", f"{count} ranks: rank 0's step over one by DDP alone", 1e3 * more_s, "ms"),
        Row(
            "scale",
            f"{count} ranks: rank 0's processor time over one by DDP alone",
            1e3 * (found["step_cpu_s"] - found["bare_cpu_s"]),
            "ms of a step",
        ),
        Row("scale", f"{count} ranks: orders of a batch, beside the loop", 1e3 * found["order_s"], "ms"),
    ]


def run_ranks(count: int, *, rounds: int = _ROUNDS) -> dict[str, float]:
    """Medians of rank 0's steps in so many ranks of this machine, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sbpipe.bench.scale.ranks"]
        ranks = [
            subprocess.Popen([*command, str(rank), str(count), folder, str(rounds)]) for rank in range(count)
        ]
        try:
            codes = [rank.wait(_WAIT_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if any(codes):
            raise RuntimeError(f"the ranks ended with {codes}")
        found: dict[str, float] = json.loads((Path(folder) / _FOUND).read_text())
        return found


class _Simulated(nn.Module):
    """A model whose forward pass waits for a device, and costs the host nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(STEP_S)
        outputs: torch.Tensor = self.last(inputs)
        return outputs


class _Examples:
    """Batches that take no time to load."""

    def batch(self, example_ids: Ids, epochs: int | Ids) -> tuple[torch.Tensor, torch.Tensor]:
        targets = torch.from_numpy(example_ids % _WIDTH)
        return torch.ones(len(example_ids), _WIDTH), targets


_LOSS = nn.CrossEntropyLoss(reduction="none")


def _bare_step(config: Config, group: Group) -> TrainStep:
    """The same step by DistributedDataParallel alone: no words from rank 0, no losses gathered."""
    step = TrainStep.alone(config, _Simulated(), _LOSS, Spans())
    step.forward = group.wrap(step.model)
    return step


def main(rank: int, count: int, folder: Path, rounds: int) -> None:
    """One rank: steps of both kinds in turn, so that both meet the same machine."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder / 'store'}", rank=rank, world_size=count)
    group = Group(rank, count, torch.device("cpu"), batch_size=BATCH, wait_s=_WAIT_S)
    config = resolve({"train.batch_size": BATCH})
    step = RankedStep(config, _Simulated(), _LOSS, Spans(), group, folder)
    bare = _bare_step(config, group)
    if rank:
        _follow(group, step, bare, rounds)
    else:
        (folder / _FOUND).write_text(json.dumps(_lead(group, step, bare, rounds)))
    group.leave()
    dist.barrier()
    dist.destroy_process_group()


def _lead(group: Group, step: RankedStep, bare: TrainStep, rounds: int) -> dict[str, float]:
    split = SharedSplit(_Examples(), group)
    found: dict[str, list[float]] = {}

    def note(name: str, action: Callable[[], Any]) -> Any:
        began, cpu = time.perf_counter(), time.process_time()
        result = action()
        found.setdefault(f"{name}_s", []).append(time.perf_counter() - began)
        found.setdefault(f"{name}_cpu_s", []).append(time.process_time() - cpu)
        return result

    def order(number: int) -> Any:
        ids = np.arange(number * BATCH, (number + 1) * BATCH)
        return note("order", lambda: split.batch(ids, 0))

    share = order(0)
    for number in range((1 + rounds) * _EACH):
        # A batch ahead, as the loader's thread does.
        later = order(number + 1)
        note("step", partial(step, number, 0.0, *share))
        share = later
        if number % _EACH == _EACH - 1:
            for _ in range(_EACH):
                note("bare", partial(bare, number, 0.0, *share))
    group.order_end()
    group.flush()
    return {name: statistics.median(each[_EACH:]) for name, each in found.items()}


def _follow(group: Group, step: RankedStep, bare: TrainStep, rounds: int) -> None:
    ahead = Ahead(partial(load_share, _Examples(), group), group)
    ahead.start()
    for _ in range(1 + rounds):
        for _ in range(_EACH):
            word, share = group.hear(), ahead.next()
            step.follow(word, *share)
        for _ in range(_EACH):
            bare(0, 0.0, *share)
    ahead.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
