"""How fast two devices share gradients, through the backend that data-parallel training takes."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from sbpipe.bench.accelerator.check import Fact, NotHere, Size
from sbpipe.bench.accelerator.stage import pair, seconds

_DEADLINE_S = 300.0


def measure(size: Size) -> Sequence[Fact]:
    """All-reduce and broadcast between two processes, one device each."""
    devices = pair()
    backend = dist.Backend.default_device_backend_map.get(devices[0].type)
    if backend is None:
        raise NotHere(f"PyTorch has no collectives for {devices[0].type}")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sbpipe.bench.accelerator.collectives"]
        given = [str(Path(folder) / "meeting"), str(size.megabytes), str(size.rounds)]
        both = [
            subprocess.Popen(
                [*command, str(rank), str(device), *given],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, device in enumerate(devices)
        ]
        try:
            said = [process.communicate(timeout=_DEADLINE_S) for process in both]
        finally:
            for process in both:
                process.kill()
    for process, (_, errors) in zip(both, said, strict=True):
        if process.returncode:
            raise RuntimeError((errors.strip().splitlines() or ["a process ended without a word"])[-1])
    reduce_s, broadcast_s, small_s = json.loads(said[0][0].splitlines()[-1])
    return [
        Fact("backend", backend),
        Fact("all-reduce", size.megabytes / 1000 / reduce_s, "GB/s"),
        Fact("broadcast", size.megabytes / 1000 / broadcast_s, "GB/s"),
        Fact("all-reduce of 4 KiB", 1e6 * small_s, "µs"),
    ]


def _take_part(rank: int, device: torch.device, meeting: str, megabytes: int, rounds: int) -> list[float]:
    torch.accelerator.set_device_index(device.index)
    dist.init_process_group(
        dist.get_default_backend_for_device(device),
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=_DEADLINE_S / 2),
    )
    values, few = torch.ones(megabytes * 250_000, device=device), torch.ones(1024, device=device)
    found = [
        seconds(lambda: dist.all_reduce(values), device, rounds),
        seconds(lambda: dist.broadcast(values, src=0), device, rounds),
        seconds(lambda: dist.all_reduce(few), device, rounds),
    ]
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    _rank, _name, _meeting, _megabytes, _rounds = sys.argv[1:]
    _found = _take_part(int(_rank), torch.device(_name), _meeting, int(_megabytes), int(_rounds))
    sys.stdout.write(json.dumps(_found) + "\n")
