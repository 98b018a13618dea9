"""A loop as a user writes it for torchrun: it saves as it goes, and begins where it saved.

torchrun --nproc-per-node 2 --max-restarts 1 saving_loop.py FOLDER
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import sbpipe
from support.own_loops import LINK, pair_losses, small_net, vectors

STEPS, SAVED_AT, KILLED_AT = 12, 5, 7


def train(folder: Path, rank: int = 0, world: int = 1, life: int = 0) -> None:
    """Train to the end and note what was trained on; rank 1 is killed in its first life."""
    model = small_net()
    loader = sbpipe.select(
        DataLoader(vectors(), 32),
        model,
        losses=pair_losses,
        keep=0.5,
        run_dir=folder / "run",
        settings={"mode": "inline", "selection.policy": "sb", **LINK},
    )
    checkpoint = folder / "mine.pt"
    saved = torch.load(checkpoint, weights_only=True) if checkpoint.exists() else None
    if saved:
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
    trained = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader.attach(optimizer)
    with loader, (folder / f"rank-{rank}.jsonl").open("a") as notes:
        while loader.steps < STEPS:
            for batch in loader:
                note = {"life": life, "step": loader.steps, "ids": loader.last_ids.tolist()}
                notes.write(json.dumps(note) + "\n")
                notes.flush()
                loader.weigh(pair_losses(trained, batch)).backward()
                optimizer.step()
                optimizer.zero_grad()
                if loader.steps == SAVED_AT and (state := loader.state_dict()):
                    torch.save({"model": model.state_dict(), "loader": state}, checkpoint)
                if (rank, loader.steps, life) == (1, KILLED_AT, 0):
                    os.kill(os.getpid(), signal.SIGKILL)
                if loader.steps == STEPS:
                    break


if __name__ == "__main__":
    torch.set_num_threads(1)
    sbpipe.join_ranks("gloo")
    place = [int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")]
    train(Path(sys.argv[1]), *place)
