"""The models' room: builds a network by its name in the settings, with reproducible initial weights.

It must not know data sets, devices, losses or optimizers. One file per family, one dict from name to builder
(`build.py`).
"""

from sbpipe.models.build import build_model, weigh_model
from sbpipe.models.parts import parts_of

__all__ = ["build_model", "parts_of", "weigh_model"]
