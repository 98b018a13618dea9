"""What a user's own loop is to run with. It must not know how a run is opened."""

import copy
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from sbpipe.config import Config
from sbpipe.records import Manifest
from sbpipe.selector.job import OwnJob


@dataclass(frozen=True)
class Plan:
    """What a loop is to run with; all of it checked."""

    job: OwnJob
    config: Config
    path: Path
    accumulate: int
    has_own_selector: bool
    """Whether the loop starts a selector itself."""
    published: nn.Module
    """Whose weights selectors score with."""
    skeleton: nn.Module | None = None
    """Of several ranks, the model as it was before anything cut it up."""

    def twin(self) -> OwnJob:
        """The job with a model of its own, whole."""
        whole = self.job.model if self.skeleton is None else self.skeleton
        return OwnJob(self.job.data, copy.deepcopy(whole), self.job.losses)

    def manifest(self) -> Manifest:
        """The layout of snapshots."""
        whole = self.job.model if self.skeleton is None else self.skeleton
        return OwnJob(self.job.data, whole, self.job.losses).manifest(self.config.sync.dtype)
