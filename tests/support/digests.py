"""Runs whose final weights are the same bits each time: what tests compare, and what a refactoring must not
change.

    PYTHONPATH=tests python -m support.digests record FILE     before
    PYTHONPATH=tests python -m support.digests compare FILE    after, on the same machine
"""

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sbpipe.config import Config, resolve
from sbpipe.data import load_data
from sbpipe.data.score_file import ScoreFile, write_scores
from sbpipe.errors import ConfigError
from sbpipe.scoring import int8
from sbpipe.selection import POLICIES
from support.ranked import train_ranks
from support.runs import (
    SMALL,
    events_of,
    train_inline,
    train_over,
    train_over_the_wire,
)

Settings = dict[str, Any]

TRAIN: dict[str, Callable[..., dict[str, Any]]] = {
    "inline": train_inline,
    "lockstep": train_over_the_wire,
    "fixed-lag": train_over,
    "data-parallel": train_ranks,
}
"""How a run of each mode is made here; pipelined runs depend on time and are not among them."""

_OF_TIME = ("t", "clock", "spans", "age_mean", "queue_mean")
"""Of a step: when it was, and when its scores arrived."""

CUT_AT = 5
"""The step whose checkpoint a resumed run goes on from."""

VARIANTS: dict[str, Settings] = {
    "int8": {"selection.policy": "steady", "selector.precision": "int8"},
    "by class": {"selection.policy": "sb", "selection.history_by": "class"},
    "top by class": {"selection.policy": "topk", "selection.history_by": "class"},
    "clipped": {
        "selection.policy": "rank",
        "selection.floor": 3,
        "selection.outliers": "clip",
        "selection.score": "gradient",
    },
}
"""Settings that change what a selector computes or chooses, in every mode with one."""

ALONE: dict[str, Settings] = {
    "inline/ramp": {"selection.policy": "steady", "selection.ramp": True, "train.steps": 40},
    "inline/reuse": {
        "selection.policy": "sb",
        "selection.reuse_epochs": 2,
        "selection.reuse_by": "gaussian",
        "train.steps": 40,
    },
    "inline/unbiased": {"selection.policy": "sb", "selection.unbiased": 4.0},
    "inline/views": {
        "model.name": "small_resnet",
        "model.options": {"depth": 8, "width": 8},
        "view.crop": 2,
        "view.flip": True,
        "view.cutout": 4,
    },
    "fixed-lag/two rates": {"selection.policy": "steady", "sync.interval": 4, "sync.lag": 2},
}
"""Settings that one mode is enough for."""


def variants() -> dict[str, Settings]:
    """The variants that this CPU has kernels for."""
    return {what: given for what, given in VARIANTS.items() if what != "int8" or int8.is_available()}


def configs(folder: Path) -> dict[str, Config]:
    """Every run by its name, MODE/WHAT: each policy and variant in each mode that allows it."""
    named = {policy: {"selection.policy": policy} for policy in POLICIES} | variants()
    every = {f"{mode}/{what}": given for what, given in named.items() for mode in TRAIN} | ALONE
    found = {}
    for name, given in every.items():
        try:
            found[name] = config_of(name.partition("/")[0], given, folder)
        except ConfigError:  # this mode has no selector, or this policy needs both roles in one process
            continue
    return found


def config_of(mode: str, given: Settings, folder: Path) -> Config:
    """A tiny run with these settings; where its policy needs a file of losses, that lies in the folder."""
    # A port that delays messages counts its turns, and one that is idle takes half a heartbeat.
    settings = SMALL | {"mode": mode, "sync.lag": 2, "link.heartbeat_s": 0.05} | given
    if POLICIES[given.get("selection.policy", "steady")].traits.needs_irreducible:
        settings |= {"selection.irreducible": str(_irreducible(folder))}
    return resolve(settings)


def trained(config: Config, path: Path) -> dict[str, Any]:
    """One run; its summary."""
    return TRAIN[config.mode](config, path)


def resumed(config: Config, path: Path) -> dict[str, Any]:
    """Take a finished run back to the checkpoint of step `CUT_AT`, as if it had been killed there, and go on.

    The config must be one that `cut` made.
    """
    for checkpoint in (path / "checkpoints").glob("*.pt"):
        if checkpoint.name != f"step-{CUT_AT}.pt":
            checkpoint.unlink()
    (path / "summary.json").unlink()
    return TRAIN[config.mode](config, path, resume=True)


def cut(given: Settings) -> Settings:
    """Settings of a run that leaves the checkpoint to resume from."""
    return given | {"checkpoint.every": CUT_AT, "checkpoint.keep": 9}


def first_difference(one: Path, other: Path) -> str:
    """Where two runs part that should be the same: the first step of which they tell something else.

    Other candidates or classes mean another choice; the same ones with another loss, other arithmetic. Fewer
    steps mean that something stopped a run, as a signal meant for another process would.
    """
    ours, others = events_of(one, "step"), events_of(other, "step")
    if len(ours) != len(others):
        ended = [events_of(path, "summary")[-1]["status"] for path in (one, other)]
        return f"they take {len(ours)} and {len(others)} steps and end as {ended}"
    for mine, theirs in zip(ours, others, strict=True):
        told = {name: (mine[name], theirs[name]) for name in mine if name not in _OF_TIME}
        parted = {name: values for name, values in told.items() if values[0] != values[1]}
        if parted:
            return f"they part at step {mine['step']}: {parted}"
    return "every step tells the same: they part after the last one, or in what no step tells"


def _irreducible(folder: Path) -> Path:
    path = folder / "irreducible.npz"
    if not path.exists():
        config = resolve(SMALL)
        data = load_data(config.data, config.view, seed=config.seed, device=torch.device("cpu"))
        losses = np.linspace(0, 3, data.train.num_examples, dtype=np.float32)
        write_scores(path, ScoreFile("irreducible", data.whole, losses))
    return path


# --- the command ----------------------------------------------------------------------------------


def machine() -> str:
    """What bits depend on beside the program."""
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, one thread"


def record() -> dict[str, str]:
    """The digest of every run, and of some that were resumed."""
    torch.set_num_threads(1)
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, (what, config) in enumerate(configs(folder).items()):
            found[what] = _told(what, trained(config, folder / str(number)))
        for mode, policy in (("inline", "steady"), ("inline", "infobatch"), ("fixed-lag", "sb")):
            config = config_of(mode, cut({"selection.policy": policy}), folder)
            what, path = f"{mode}/{policy} resumed", folder / f"{mode}-{policy}"
            trained(config, path)
            found[what] = _told(what, resumed(config, path))
    return found


def _told(what: str, summary: dict[str, Any]) -> str:
    digest = str(summary["weights.digest"])
    sys.stdout.write(f"{what:32s} {digest}\n")
    sys.stdout.flush()
    return digest


def main() -> int:
    """Record or compare; 1 if a digest differs."""
    parser = argparse.ArgumentParser(prog="python -m support.digests", description=__doc__)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # settings without effect here are no news
    if args.action == "record":
        args.file.write_text(json.dumps({"machine": machine(), "digests": record()}, indent=1) + "\n")
        return 0
    before = json.loads(args.file.read_text())
    if before["machine"] != machine():
        sys.stdout.write(f"not comparable: recorded with {before['machine']}, here is {machine()}\n")
        return 1
    now, then = record(), before["digests"]
    others = sorted(what for what in now.keys() | then.keys() if now.get(what) != then.get(what))
    for what in others:
        sys.stdout.write(f"DIFFERENT {what}: {then.get(what, 'not recorded')} -> {now.get(what, 'gone')}\n")
    sys.stdout.write(f"{len(now) - len(others)} of {len(now)} runs end with the weights they ended with\n")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main())
