"""Publishing a model that two ranks share (FSDP2, gloo): how long the loop is held, against the gather alone.

`python -m sbpipe.bench.shards RANK FOLDER LAYERS` is one rank; rank 0 leaves what it found in the folder.
"""

import ctypes
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from sbpipe.bench.rows import Row
from sbpipe.models import parts_of
from sbpipe.records import Part
from sbpipe.runs.spans import Spans
from sbpipe.trainer.ranks.shards import shard
from sbpipe.weights.gather import BUCKET_BYTES, Shards
from sbpipe.weights.manifest import build_manifest
from sbpipe.weights.publisher import Publisher
from sbpipe.weights.slots import Slots

RANKS = 2
LAYERS, WIDTH = 12, 768
"""Of a transformer, 340 MB in all: several buckets."""
_ROUNDS = 9
_DEADLINE_S = 300.0
_FOUND = "found.json"
_STATUS, _REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure(layers: int = LAYERS) -> list[Row]:
    """Two ranks of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sbpipe.bench.shards"]
        ranks = [subprocess.Popen([*command, str(rank), folder, str(layers)]) for rank in range(RANKS)]
        try:
            codes = [rank.wait(_DEADLINE_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if any(codes):
            raise RuntimeError(f"the ranks ended with {codes}")
        found: dict[str, Any] = json.loads((Path(folder) / _FOUND).read_text())
    what = f"{found['megabytes']:.0f} MB in shares of {RANKS} ranks"
    ratio = found["publish_s"] / found["gather_s"]
    return [
        Row("publish", f"{what}: gather", 1e3 * found["gather_s"], "ms"),
        Row("publish", f"{what}: publish", 1e3 * found["publish_s"], "ms"),
        Row("publish", f"{what}: the loop is held, against the gather", ratio, "×", at_most=1.5),
        Row("publish", f"{what}: memory while it lasts", found["buckets"], "buckets", at_most=2.0),
        Row("publish", f"{what}: bytes equal those of the whole model", found["is_equal"], "", at_least=1),
    ]


def main(rank: int, folder: Path, layers: int) -> None:
    """One rank: gathers and publishes in turn, so that both meet the same machine."""
    dist.init_process_group("gloo", f"file://{folder / 'store'}", rank=rank, world_size=RANKS)
    model, whole = _model(layers), _model(layers)
    manifest = build_manifest(model, parts_of(model), "fp32")
    shard(model, torch.device("cpu"), RANKS)
    shards = Shards(model, manifest)
    slots = Slots.create(manifest.num_bytes)
    publisher = Publisher(model, manifest, slots, Spans(), [], lambda part, version, is_late: None)
    versions = iter(range(1, 10**9))

    def publish() -> None:
        # The other ranks only give their shares.
        if rank:
            shards.copy_into(None)
        else:
            publisher[Part.WHOLE].publish(next(versions))

    try:
        for _ in range(slots.num_slots + 1):  # every slot has its memory after that
            publish()
        times: dict[str, list[float]] = {"gather_s": [], "publish_s": []}
        for _ in range(_ROUNDS):
            times["gather_s"].append(_seconds(lambda: shards.copy_into(None)))
            times["publish_s"].append(_seconds(publish))
        extra = _extra_bytes(publish)
        if rank == 0:
            found: dict[str, Any] = {name: sorted(each)[_ROUNDS // 2] for name, each in times.items()}
            found |= {"megabytes": manifest.num_bytes / 1e6, "buckets": extra / BUCKET_BYTES}
            found["is_equal"] = int(_digest(slots) == _digest_of(whole))
            (folder / _FOUND).write_text(json.dumps(found))
        dist.barrier()
    finally:
        slots.close()
        dist.destroy_process_group()


def _model(layers: int) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def _seconds(action: Callable[[], None]) -> float:
    dist.barrier()
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def _extra_bytes(action: Callable[[], None]) -> int:
    """The most memory that this process had meanwhile, beyond what it had before."""
    dist.barrier()
    ctypes.CDLL(None).malloc_trim(0)  # what the allocator has kept would be used again unseen
    _REFERENCES.write_text("5")  # the kernel forgets the greatest size so far
    before = _status("VmRSS")
    action()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def _digest(slots: Slots) -> str:
    return hashlib.sha256(slots.slot(slots.newest).numpy().tobytes()).hexdigest()


def _digest_of(model: nn.Module) -> str:
    """Of the snapshot of a model that one process has whole."""
    manifest = build_manifest(model, parts_of(model), "fp32")
    slots = Slots.create(manifest.num_bytes)
    try:
        Publisher(model, manifest, slots, Spans(), [], lambda part, version, is_late: None).publish_all(1)
        return _digest(slots)
    finally:
        slots.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
