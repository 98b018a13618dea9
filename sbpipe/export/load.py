"""The model of this folder: python load.py [INPUTS.npy] prints what it says of them.

From a program: `model, card = load(folder)`, then `predict(model, card, inputs)`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from sbpipe.config import ModelConfig
from sbpipe.machine.layout import laid_out, layout_of
from sbpipe.models import build_model


def load(folder: Path) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The model in evaluation mode, and its card."""
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    model = build_model(
        ModelConfig(**card["model"]),
        num_classes=card["num_classes"],
        input_shape=tuple(card["input"]["shape"]),
        seed=0,
    )
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval(), card


@torch.inference_mode()
def predict(model: torch.nn.Module, card: dict[str, Any], inputs: Any) -> torch.Tensor:
    """The outputs for N inputs as the data set has them: uint8 images of axes NCHW, or float32."""
    values = torch.as_tensor(inputs).to(torch.float32)
    if card["input"]["mean"] is not None:
        mean, std = (np.array(card["input"][name])[:, None, None] for name in ("mean", "std"))
        scale, shift = ((1 / std).astype(np.float32), (-mean / std).astype(np.float32))
        values = values * torch.from_numpy(scale) + torch.from_numpy(shift)
    outputs: torch.Tensor = model(laid_out(values, layout_of(model)))
    return outputs


if __name__ == "__main__":
    loaded, facts = load(Path(__file__).parent)
    form = facts["input"]
    batch = (
        np.load(sys.argv[1], allow_pickle=False)
        if len(sys.argv) > 1
        else np.zeros((2, *form["shape"]), form["dtype"])
    )
    for answer in predict(loaded, facts, batch):
        name = facts["classes"][int(answer.argmax())] if facts["classes"] else ""
        sys.stdout.write(f"{answer.tolist()} {name}\n")
