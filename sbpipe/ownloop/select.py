"""`sbpipe.select`: selection inside a user's own loop; and `sbpipe.job`, the same job for another host.

The entry to this room: it checks the arguments and wires the parts; it must not know how selection works.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sbpipe.errors import ConfigError
from sbpipe.machine.place import own_place
from sbpipe.models.stand_in import Losses
from sbpipe.ownloop.arguments import batch_size_of, make_config, make_job, unwrapped
from sbpipe.ownloop.loader import SelectedLoader
from sbpipe.ownloop.plan import Plan
from sbpipe.ownloop.ranks import num_ranks, whole_copy
from sbpipe.ownloop.role import serve
from sbpipe.runs.directory import default_path
from sbpipe.selector.job import OwnJob

ROLE = "SBPIPE_ROLE"
"""Environment variable: at `selector`, `select` serves a trainer elsewhere and returns no loader."""


def select(
    loader: Any,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    losses: Losses,
    keep: float | str | None = None,
    selector: str | None = "auto",
    accumulate: int = 1,
    publish: nn.Module | None = None,
    run_dir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> SelectedLoader:
    """Selection inside your own loop: iterate over what it returns in place of `loader`, a DataLoader.

    `losses(model, batch)` gives one value per example; selector and loop call the same function. `keep` is
    the share of the examples to train on (by default as small as the selector's speed allows). `selector` is
    the device of the selector that is started beside the loop, or an address (`tcp://0.0.0.0:5555`) to listen
    at for selectors of other hosts, or None for those that will connect by `run_dir`. `accumulate` is how
    many batches one optimizer step takes. On several ranks (torchrun) `loader` has global batches, of which
    each rank gets its share; call it before `fully_shard`. `publish` is the module whose weights score, such
    as an average of the model's. `settings` are dotted keys as `sbpipe run` has them. The optimizer may come
    later, by `.attach(optimizer)`.
    """
    own_job, batch_size = make_job(loader, model, losses), batch_size_of(loader)
    world = num_ranks()
    config = make_config(
        settings,
        keep=keep,
        selector=selector,
        batch_size=batch_size,
        accumulate=accumulate,
        num_workers=own_job.data.num_workers,
        num_examples=own_job.data.num_examples,
        num_ranks=world,
    )
    # As many as the loader has, unless the settings say otherwise.
    data = replace(own_job.data, num_workers=max(1, config.data.workers))
    own_job = replace(own_job, data=data)
    if os.environ.get(ROLE) == "selector":
        serve(config, own_job, dict(settings or {}))
    path = _path_of(run_dir)
    has_own_selector = selector is not None and "://" not in selector
    published = unwrapped(publish or model, "publish")
    skeleton = None if world == 1 else whole_copy(own_job.model)
    plan = Plan(own_job, config, path, accumulate, has_own_selector, published, skeleton)
    selected = SelectedLoader(plan, batch_size)
    return selected if optimizer is None else selected.attach(optimizer)


def _path_of(run_dir: str | Path | None) -> Path:
    """The run directory; ranks that are started again must find the same one."""
    if run_dir is not None:
        return Path(run_dir)
    place = own_place()
    if place is not None and (place.world > 1 or place.may_restart):
        reason = "all ranks, and those that torchrun starts again, work on one run"
        raise ConfigError("run_dir", None, f"is missing: {reason}", "Name a folder: run_dir='runs/NAME'")
    return default_path("own")


def job(loader: Any, model: nn.Module, *, losses: Losses) -> OwnJob:
    """The job for a selector of another host: the function of `sbpipe selector --job mod:func` returns it."""
    return make_job(loader, model, losses)
