"""Parses one line of a file that may be cut, damaged or forged. Pure."""

import json
from typing import Any

from sbpipe.runs import checked

Event = dict[str, Any]


def event_of(line: bytes) -> Event | None:
    """The event in a line, with its checked fields; None if it cannot be read."""
    try:
        # Python reads NaN and Infinity, which JSON does not have.
        return checked.event_of(json.loads(line, parse_constant=lambda _: None))
    except (ValueError, RecursionError):
        return None
