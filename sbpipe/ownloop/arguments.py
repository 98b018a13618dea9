"""Checks the arguments of `sbpipe.select`: every mistake is raised here, at the user's own line.

It must not know how a run is started.
"""

import logging
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from sbpipe.config import OWN, Config, known_keys, resolve
from sbpipe.data.own_batches import OwnData
from sbpipe.errors import ConfigError, DataError, ModelError, UserError
from sbpipe.machine import devices
from sbpipe.selector.job import OwnJob
from sbpipe.trainer.stream.scores import refuse_forgetting

log = logging.getLogger("sbpipe")

_ENDLESS = 10**9
"""Steps; the user's loop decides when it ends."""
_NOT_OURS = ("data.", "view.", "model.", "loss.", "optim.", "schedule.", "eval.", "checkpoint.")
"""Settings of `sbpipe run` that a user's own loop decides by itself."""
_ALLOWED = ("data.workers", "data.block", "data.window")
_TAKEN = {
    "train.batch_size": "the loader's batch_size",
    "train.epochs": "the loop",
    "train.steps": "the loop",
    "train.ranks": "torchrun",
    "train.shard": "the model, which the loop cuts up or not,",
}


def own_data(loader: Any) -> OwnData:
    """The data set, collate function and workers of a DataLoader, or of something with the same
    attributes.
    """
    dataset = getattr(loader, "dataset", None)
    if dataset is None:
        raise DataError(
            f"select: a {type(loader).__name__} has no data set to select from. Give it the DataLoader that "
            "the loop drew from until now"
        )
    if isinstance(dataset, IterableDataset) or not all(
        hasattr(dataset, method) for method in ("__getitem__", "__len__")
    ):
        raise DataError(
            f"select: {type(dataset).__name__} cannot be indexed, and candidates are chosen by their index. "
            "Give it a map-style data set, with __len__ and __getitem__"
        )
    if not len(dataset):
        raise DataError(
            "select: the data set is empty: there is nothing to select from. Check what it was made from"
        )
    batch_size_of(loader)
    for sampler in _samplers_of(loader):
        log.warning(
            "select: the loader's %s is not used: candidates come in a random order of their own, every one "
            "once an epoch",
            type(sampler).__name__,
        )
    if getattr(loader, "worker_init_fn", None) is not None:
        log.warning(
            "select: the loader's worker_init_fn is not used: generators are seeded for every example"
        )
    return OwnData(dataset, loader.collate_fn, max(1, getattr(loader, "num_workers", 0)))


def batch_size_of(loader: Any) -> int:
    """Examples per batch of the user's loader; after accelerate's prepare only its batch sampler knows."""
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if not isinstance(size, int):
        raise DataError(
            "select: the loader has no batch_size (a batch_sampler decides). Give it a DataLoader with one: "
            "a train batch holds exactly so many examples"
        )
    return size


def _samplers_of(loader: Any) -> list[Any]:
    """The loader's samplers, without those that only shuffle or do nothing."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = [getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", None)]
    different = {id(sampler): sampler for sampler in samplers if sampler is not None}.values()
    return [each for each in different if not isinstance(each, (RandomSampler, SequentialSampler))]


def unwrapped(model: Any, what: str = "model") -> nn.Module:
    """The module inside the wrappers of torch.compile, DDP and averaging."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, (DataParallel, DistributedDataParallel, AveragedModel)):
            model = model.module
        else:
            break
    if not isinstance(model, nn.Module):
        raise ModelError(f"select: {what} is a {type(model).__name__}. Give it a torch.nn.Module")
    return model


def make_job(loader: Any, model: Any, losses: Any) -> OwnJob:
    """The job of both roles."""
    if not callable(losses):
        raise ModelError(
            f"select: losses is a {type(losses).__name__}. Give it a function losses(model, batch) that "
            "returns one value per example"
        )
    if isinstance(getattr(losses, "__self__", None), nn.Module):
        raise ModelError(
            f"select: losses is a method of one {type(losses.__self__).__name__}, and selectors call it with "
            f"models of their own. Give it the function itself: {type(losses.__self__).__name__}."
            f"{losses.__name__}"
        )
    return OwnJob(own_data(loader), unwrapped(model), losses)


def make_config(
    settings: Mapping[str, Any] | None,
    *,
    keep: float | str | None,
    selector: str | None,
    batch_size: int,
    accumulate: int,
    num_workers: int,
    num_examples: int,
    num_ranks: int = 1,
) -> Config:
    """The settings of a run in a user's own loop."""
    given = dict(settings or {})
    if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
        raise UserError(
            f"select: accumulate = {accumulate!r}: must be a whole number from 1: the batches of one "
            "optimizer step"
        )
    _refuse_settings(given)
    own: dict[str, Any] = {
        "data.name": OWN,
        "model.name": OWN,
        "loss.name": OWN,
        "train.batch_size": batch_size * accumulate,
        "train.steps": _ENDLESS,
        "data.workers": num_workers,
        "train.ranks": num_ranks,
        # The user's loop has its own checkpoints and evaluations.
        "checkpoint.every": 0,
        "eval.every": 0.0,
    }
    if keep is not None:
        own["selection.keep"] = keep
    if selector is not None and "://" in selector:
        own["link.bind"] = selector
    elif selector not in (None, "auto"):
        own["selector.device"] = selector
    config = resolve({**own, **given})
    if "selector.device" in own:
        # If the selector could not start, the loop would train without selection and nobody would notice.
        for name in config.selector.devices:
            devices.resolve("selector", name)
    if config.selection.traits.needs_irreducible:
        reason = "irreducible losses are of a data set that `sbpipe score` knows"
        raise ConfigError("selection.policy", config.selection.policy, reason, "Choose another policy")
    if num_examples < config.train.batch_size:
        raise DataError(
            f"select: {num_examples} examples do not fill one optimizer step of {config.train.batch_size} "
            f"(batch_size {batch_size}, accumulate {accumulate}). Lower one of them"
        )
    refuse_forgetting(config, num_examples)
    return config


def _refuse_settings(given: Mapping[str, Any]) -> None:
    """Refuse settings that the arguments of `select` or the user's loop decide."""
    for key in given:
        if key in _TAKEN:
            raise ConfigError(key, given[key], f"{_TAKEN[key]} decides it", "Leave it out")
        if key.startswith(_NOT_OURS) and key not in _ALLOWED and key in known_keys():
            reason = "it belongs to `sbpipe run`, and here the loop is yours"
            raise ConfigError(key, given[key], reason, "Leave it out")
    if given.get("mode") == "data-parallel":
        raise ConfigError("mode", "data-parallel", "it has no selection", "Leave it out")
