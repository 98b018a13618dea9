"""The description of the model in a checkpoint, so that the file alone is enough to use it. Knows no file."""

from typing import Any

from sbpipe.config import Config
from sbpipe.data import Data

FORMAT = 1


def card_of(config: Config, data: Data) -> dict[str, Any]:
    """How to build the model again and what to feed it, as plain values.

    Pixels of 0 to 255 become (pixel - mean) / std, channel by channel; without a mean, inputs are passed
    unchanged.
    """
    stats = data.normalisation
    return {
        "format": FORMAT,
        "model": {"name": config.model.name, "options": config.model.options},
        "num_classes": data.num_classes,
        "classes": list(data.class_names),
        "input": {
            "shape": list(data.input_shape),
            "dtype": "float32" if stats is None else "uint8",
            "mean": None if stats is None else list(stats.mean),
            "std": None if stats is None else list(stats.deviation),
        },
    }
