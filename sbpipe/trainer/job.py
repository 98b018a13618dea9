"""What is selected from and trained, by our loop or a user's. Knows no engine."""

from dataclasses import dataclass

import torch
from torch import nn

from sbpipe.config import Config
from sbpipe.records import Classes, Floats, Manifest
from sbpipe.trainer.serving.feed import Examples


@dataclass(frozen=True)
class Job:
    """The part of a run that its selectors must agree on."""

    config: Config
    model: nn.Module
    manifest: Manifest
    examples: Examples
    num_examples: int
    num_classes: int
    classes: Classes | None
    fingerprints: dict[str, str]
    irreducible: Floats | None = None
    is_entropy: bool = False
    """Whether the losses were found to be plain cross entropy of classes."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = next(iter(self.model.state_dict().values())).device
        return device
