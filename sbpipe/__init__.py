"""Selective-Backprop on two devices at once.

    >>> import sbpipe
    >>> summary = sbpipe.train({"selection.keep": 0.25}, run_dir="runs/first")
    >>> summary["eval.error"]

`train` does what `sbpipe run` does; `select` brings selection into a loop of your own. Nothing heavy is
imported before it is called.
"""

from typing import TYPE_CHECKING, Any

from sbpipe.version import __version__

if TYPE_CHECKING:
    from sbpipe.api import train
    from sbpipe.config import Config, resolve
    from sbpipe.ownloop.select import job, select
    from sbpipe.trainer.ranks.meeting import join_ranks

__all__ = ["Config", "__version__", "job", "join_ranks", "resolve", "select", "train"]


def __getattr__(name: str) -> Any:
    """Import names on first use, so that the command can handle Ctrl-C from its first moment."""
    if name == "train":
        from sbpipe.api import train

        return train
    if name in ("job", "select"):
        from sbpipe.ownloop import select

        return getattr(select, name)
    if name == "join_ranks":
        from sbpipe.trainer.ranks.meeting import join_ranks

        return join_ranks
    if name in ("Config", "resolve"):
        from sbpipe import config

        return getattr(config, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
