"""The job of a user's own loop, as a selector gets it: what the user gave to `sbpipe.select`, in a file.

The file is a pickle and runs code when it is read. So it is read only if it belongs to this user and no other
user can access it, and it never goes over a wire. It must not know who wrote it, nor what is done with the
job.
"""

import os
import pickle
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import torch
from torch import nn

from sbpipe import randomness
from sbpipe.config.plugins import import_plugin, is_plugin
from sbpipe.data.own_batches import OwnBatches, OwnData
from sbpipe.errors import DataError, UserError
from sbpipe.models import parts_of
from sbpipe.models.stand_in import Losses, StandIn
from sbpipe.records import Manifest
from sbpipe.runs.names.files import JOB
from sbpipe.weights.manifest import build_manifest

_PROBED = 8
"""Examples that both sides score to check that they compute the same."""


@dataclass(frozen=True)
class OwnJob:
    """The data to select from and how it is scored: the same on both sides."""

    data: OwnData
    model: nn.Module
    losses: Losses

    def manifest(self, dtype: str, *, is_channels_last: bool = False) -> Manifest:
        """The layout of the model's snapshots; the trainer says how kernels of images lie there."""
        return build_manifest(self.model, parts_of(self.model), dtype, is_channels_last=is_channels_last)

    def fingerprints(self, batches: OwnBatches, manifest: Manifest, device: torch.device) -> dict[str, str]:
        """What both sides must agree on."""
        return {
            "data": f"{self.data.num_examples} examples",
            "model": manifest.digest,
            "probe": self._probe(batches, device),
        }

    def _probe(self, batches: OwnBatches, device: torch.device) -> str:
        """The losses of a few examples under made-up weights: they show whether data, model and losses are
        the same on both sides, before any weights are sent.
        """
        count = min(_PROBED, self.data.num_examples)
        ids = torch.arange(count).mul(self.data.num_examples).div(count, rounding_mode="floor").numpy()
        lot, _ = batches.batch(ids, 0)
        model = self.model.to(device).eval()
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        try:
            model.load_state_dict({name: _made_up(name, tensor) for name, tensor in state.items()})
            with torch.no_grad(), torch.random.fork_rng([]):
                losses = StandIn(model, model).evaluate(self.losses, lot.tree)
        finally:
            model.load_state_dict(state)
        return " ".join(f"{value:.4g}" for value in losses.flatten().tolist())


def _made_up(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Weights that depend on position only, scaled to keep activations in range; integers stay."""
    if not tensor.is_floating_point():
        return tensor
    if tensor.dim() < 2 or not tensor.numel():
        return torch.full_like(tensor, 0.0 if name.endswith(("bias", "running_mean")) else 1.0)
    places = torch.arange(tensor.numel(), dtype=torch.int64)
    bits = randomness.mix(places, randomness.key(0, "probe", len(name))) >> 40
    values = bits.double().div_(2.0**23).mul_((3.0 / tensor[0].numel()) ** 0.5)
    return values.view(tensor.shape).to(tensor)


def write_job(job: OwnJob, path: Path) -> None:
    """Write a job for the selectors of this user."""
    # A new file: an existing one would keep its owner and mode, and might be a link.
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            # First: the modules of the job are then found by the same paths as here.
            pickle.dump(sys.path, file)
            cloudpickle.dump(job, file)
    # A user's object may raise any error when pickled; a full disk is another matter.
    except Exception as error:
        path.unlink()
        if isinstance(error, OSError):
            raise
        raise DataError(
            f"select: {_culprit(job)} cannot be sent to the selector's process: {type(error).__name__}: "
            f"{error}. Keep open files, locks and connections out of it (open them on first use), or start "
            "the selector from the same script: select(..., selector=None), and SBPIPE_ROLE=selector there"
        ) from error


def _culprit(job: OwnJob) -> str:
    """The first part of a job that cannot be pickled."""
    parts = {"losses": job.losses, "the model": job.model, "the collate function": job.data.collate}
    for name, part in parts.items():
        try:
            cloudpickle.dumps(part)
        except Exception:  # noqa: BLE001 - whatever it raises, it is the one
            return name
    return "the data set"


def read_job(given: str) -> OwnJob:
    """The job in a file, or the one that `module:function` returns."""
    if is_plugin(given):
        return as_job(import_plugin("--job", given)(), given)
    path = Path(given)
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise UserError(
                    f"--job {path}: is not this user's alone, and reading it runs what is in it. Take one "
                    "that your own script left, with mode 600"
                )
            for folder in pickle.load(file):
                if folder not in sys.path:
                    sys.path.append(folder)
            return as_job(cloudpickle.load(file), given)
    except OSError as error:
        raise UserError(
            f"--job {path}: cannot be read ({error.strerror}). Give the {JOB} of the loop's run directory"
        ) from None


def as_job(found: Any, given: str) -> OwnJob:
    """What a file or function gave, if it is a job."""
    if not isinstance(found, OwnJob):
        raise UserError(
            f"--job {given}: is a {type(found).__name__}. Make it a job with sbpipe.job(loader, model, "
            "losses=...)"
        )
    return found
