"""Tries the user's losses on a first batch before anything is started, so that a wrong shape shows at once.

It changes neither the model, nor its statistics, nor any generator. It must not know the engine.
"""

from functools import partial
from typing import Any

import numpy as np
import torch

from sbpipe.data.own_batches import OwnBatches
from sbpipe.errors import ModelError
from sbpipe.models.losses import check_loss
from sbpipe.ownloop.plan import Plan
from sbpipe.selector.job import OwnJob


def rehearse(plan: Plan) -> None:
    """Compute the losses of one batch as the loop will; raises ModelError with the fix."""
    job, config = plan.job, plan.config
    device = next(job.model.parameters()).device
    batches = OwnBatches(job.data, seed=config.seed, device=device)
    modes = [(module, module.training) for module in job.model.modules()]
    buffers = {name: buffer.clone() for name, buffer in job.model.named_buffers()}
    try:
        size = -(-config.train.batch_size // plan.accumulate // config.num_ranks)
        lot, _ = batches.batch(np.arange(size), 0)
        job.model.eval()
        with torch.random.fork_rng([device] if device.type != "cpu" else [], device_type=_kind(device)):
            check_loss(partial(_losses_of, job), torch.empty(size), lot.tree)
    finally:
        batches.close()
        for module, was_training in modes:
            module.training = was_training
        with torch.no_grad():
            for name, buffer in job.model.named_buffers():
                buffer.copy_(buffers[name])


def _losses_of(job: OwnJob, _: Any, batch: Any) -> Any:
    """The result of the user's function; its exceptions become a ModelError that says how it is called."""
    try:
        return job.losses(job.model, batch)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        raise ModelError(
            f"select: losses(model, batch) raised {type(error).__name__}: {error}. It is called with the "
            "model and a batch as the loader's collate_fn makes it, on the model's device"
        ) from error


def _kind(device: torch.device) -> str:
    return "cuda" if device.type == "cpu" else device.type
