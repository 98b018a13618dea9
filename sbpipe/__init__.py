"""Selective-Backprop on two devices at once.

    >>> import sbpipe
    >>> summary = sbpipe.train({"selection.keep": 0.25}, run_dir="runs/first")
    >>> summary["eval.error"]

`train` does what `sbpipe run` does. Nothing heavy is imported before it is called.
"""

from sbpipe.api import train
from sbpipe.config import Config, resolve
from sbpipe.version import __version__

__all__ = ["Config", "__version__", "resolve", "train"]
