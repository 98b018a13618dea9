"""Copies runs to TensorBoard, Weights & Biases and MLflow from the run directory; a run never waits for it.

To add a tracker: one class with the methods of `tracker.Tracker` in a file of its own, and its line in
`TRACKERS`, whose keys are the names of the library, of the extra and of the setting.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from sbpipe.config import Config, flatten, to_dict
from sbpipe.errors import MissingExtra
from sbpipe.show.trackers.copier import Copier, wait_for_begin
from sbpipe.show.trackers.mlflow import MLflow
from sbpipe.show.trackers.tensorboard import TensorBoard
from sbpipe.show.trackers.tracker import Tracked, Tracker
from sbpipe.show.trackers.wandb import WeightsAndBiases

PROJECT = "sbpipe"
TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}

__all__ = [
    "PROJECT",
    "TRACKERS",
    "Copier",
    "Tracked",
    "Tracker",
    "check_installed",
    "switched_on",
    "wait_for_begin",
    "wanted",
]


def wanted(config: Config) -> list[str]:
    """The trackers that a run's settings switch on."""
    return switched_on(flatten(to_dict(config)))


def switched_on(settings: Mapping[str, Any]) -> list[str]:
    """The same for settings by their dotted keys, as in `config.json`."""
    return [name for name in TRACKERS if settings.get(f"trackers.{name}") is True]


def check_installed(names: Sequence[str]) -> None:
    """Refuse trackers whose library is missing, before a run begins. Imports nothing."""
    for name in names:
        spec = find_spec(name)
        # Without an origin it is only a folder of that name, such as W&B leaves behind.
        if spec is None or spec.origin is None:
            raise MissingExtra(name, name, TRACKERS[name].purpose)
