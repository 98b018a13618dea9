"""The models' room: from a name in the settings to a network with reproducible first weights.

It must not know data sets, devices, losses or optimizers. One file per family, one dict from name to builder
(`build.py`).
"""

from sbpipe.models.build import build_model, weigh_model
from sbpipe.models.parts import parts_of

__all__ = ["build_model", "parts_of", "weigh_model"]
