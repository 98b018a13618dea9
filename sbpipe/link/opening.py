"""Ports from settings: finds the keys and the trainer, so that the loops need not. Knows no loop."""

from pathlib import Path

from sbpipe.config import LinkConfig
from sbpipe.link.connection import locate
from sbpipe.link.keys import load_keys
from sbpipe.link.sockets import SelectorPort, TrainerPort


def open_trainer_port(link: LinkConfig) -> TrainerPort:
    """Listen at `link.bind`, with the keys of `link.keys` if it is set."""
    return TrainerPort(link, load_keys(Path(link.keys), "trainer") if link.keys else None)


def open_selector_port(link: LinkConfig, selector_id: str) -> SelectorPort:
    """Connect to `link.connect`, keys from `link.keys` or the run directory. NotThereYet: try again."""
    connection = locate(link.connect)
    folder = link.keys or connection.keys
    return SelectorPort(
        connection.endpoints, selector_id, link, load_keys(Path(folder), "selector") if folder else None
    )
