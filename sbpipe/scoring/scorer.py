"""The scorer: candidates in, one float32 score each out. Touches neither BatchNorm statistics nor any generator."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sbpipe.layout import laid_out
from sbpipe.losses import PerExampleLoss
from sbpipe.records import Floats

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Scorer:
    """Scores with a replica of the model, in evaluation mode, at the selector's precision; the loss itself is always float32."""

    def __init__(self, model: nn.Module, loss: PerExampleLoss, *, precision: str, device: torch.device) -> None:
        self._dtype = PRECISIONS[precision]
        self.model = model.to(device=device, dtype=self._dtype).eval().requires_grad_(False)
        self._loss = loss
        self.num_outputs = 0
        """Classes that predictions are of, once there are some."""

    def score(self, inputs: torch.Tensor, targets: torch.Tensor) -> Floats:
        """The loss of each candidate. Scores that overflowed come out as they are: the policy never keeps them."""
        return self.score_and_predict(inputs, targets)[0]

    @torch.inference_mode()
    def score_and_predict(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[Floats, NDArray[np.int64] | None]:
        """The loss of each candidate, and the class the model takes it for; None where it is no classifier."""
        outputs = self.model(laid_out(inputs, self._dtype)).float()
        losses: Floats = self._loss(outputs, targets).float().cpu().numpy()
        if outputs.ndim != 2 or targets.ndim != 1 or targets.is_floating_point():
            return losses, None
        self.num_outputs = outputs.shape[1]
        return losses, outputs.argmax(dim=1).cpu().numpy()
