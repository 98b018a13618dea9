"""The scorer: candidates in, one float32 score each out. Touches neither BatchNorm statistics nor any generator."""

import torch
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

    @torch.inference_mode()
    def score(self, inputs: torch.Tensor, targets: torch.Tensor) -> Floats:
        """The loss of each candidate. Scores that overflowed come out as they are: the policy never keeps them."""
        outputs = self.model(laid_out(inputs, self._dtype))
        losses: Floats = self._loss(outputs.float(), targets).float().cpu().numpy()
        return losses
