"""Runs a user's own script as a selector: the same script on another host, with SBPIPE_ROLE=selector."""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from sbpipe.config import Config
from sbpipe.interrupts import STOPPED
from sbpipe.process.roles import run_selector
from sbpipe.records import RunEnd
from sbpipe.selector.job import OwnJob

CONNECT, KEYS = "SBPIPE_CONNECT", "SBPIPE_KEYS"
"""Environment variables: the trainer's run directory or address, and the file of this selector's key."""


def serve(config: Config, job: OwnJob, given: Mapping[str, Any]) -> NoReturn:
    """Serve the trainer until it says goodbye, then end the process as `sbpipe selector` does."""
    link = replace(
        config.link,
        connect=os.environ.get(CONNECT, config.link.connect),
        keys=os.environ.get(KEYS, config.link.keys),
    )
    # Only what a selector decides by itself; the rest comes from the trainer, which runs the same script.
    own = {key: value for key, value in given.items() if key.startswith(("selector.", "link."))}
    end = run_selector(replace(config, link=link), own, job=job)
    sys.exit(STOPPED if end is RunEnd.STOPPED else 0)
