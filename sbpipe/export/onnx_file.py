"""A model as ONNX, for programs without torch. The one file that needs the extra `onnx`."""

import importlib.util
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sbpipe.errors import MissingExtra, ModelError
from sbpipe.files import atomic_file

LIBRARIES = ("onnx", "onnxscript")


def check_installed() -> None:
    """Raise now what an export would find out after a minute."""
    for library in LIBRARIES:
        if importlib.util.find_spec(library) is None:
            raise MissingExtra(library, "onnx", "exports to ONNX")


def write(path: Path, model: nn.Module, card: dict[str, Any]) -> None:
    """Write the network alone: it takes inputs of any number, normalised as the card says."""
    inputs = torch.zeros(2, *card["input"]["shape"])
    # They tell every step that they take, which is no news for whoever exports.
    for name in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                model,
                (inputs,),
                input_names=["inputs"],
                output_names=["outputs"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"model.name = {card['model']['name']!r}: torch cannot write it as ONNX ({first}). Export "
            "without --onnx; model.safetensors holds the same weights"
        ) from error
    assert program is not None, "torch returns it where no file is named"
    with atomic_file(path) as file:
        file.write(program.model_proto.SerializeToString())
