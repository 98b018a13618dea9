"""The checked plan of a run in a user's own loop. It must not know how a run is opened."""

import copy
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from sbpipe.config import Config
from sbpipe.errors import ModelError
from sbpipe.records import Manifest
from sbpipe.selector.job import OwnJob
from sbpipe.weights.gather import Shards
from sbpipe.weights.manifest import lies_channels_last


@dataclass(frozen=True)
class Plan:
    """What a loop runs with, checked."""

    job: OwnJob
    config: Config
    path: Path
    accumulate: int
    has_own_selector: bool
    """Whether the loop starts a selector itself."""
    published: nn.Module
    """The module whose weights selectors score with."""
    skeleton: nn.Module | None = None
    """With several ranks, the model before it was sharded."""

    def twin(self) -> OwnJob:
        """The job with its own copy of the whole model."""
        whole = self.job.model if self.skeleton is None else self.skeleton
        return OwnJob(self.job.data, copy.deepcopy(whole), self.job.losses)

    def layout(self, twin: OwnJob) -> Manifest:
        """The layout of snapshots: for models like the twin's, in the memory format of the published ones."""
        # The weights of a sharded model are put together on the host, where channels-last has no use.
        is_turned = not Shards.are_in(self.published) and lies_channels_last(self.published)
        published = OwnJob(self.job.data, self.published, self.job.losses)
        layouts = [
            job.manifest(self.config.sync.dtype, is_channels_last=is_turned) for job in (twin, published)
        ]
        if layouts[0] != layouts[1]:
            raise ModelError(
                "select: publish has other parameters than model, and selectors score with its weights. "
                "Give it a copy of the model, such as an average of its weights"
            )
        return layouts[0]

    def manifest(self) -> Manifest:
        """The layout of snapshots."""
        whole = self.job.model if self.skeleton is None else self.skeleton
        return OwnJob(self.job.data, whole, self.job.losses).manifest(self.config.sync.dtype)
