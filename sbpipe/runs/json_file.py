"""JSON files that anybody may have written: long, deeply nested or damaged ones become one kind of error."""

import json
from pathlib import Path
from typing import Any

MOST_BYTES = 16 << 20


class TooLongError(ValueError):
    """A file longer than any that sbpipe writes."""


def read_json(path: Path) -> Any:
    """What a JSON file holds, infinities and NaN as None; OSError or ValueError if it cannot be read."""
    if path.stat().st_size > MOST_BYTES:
        raise TooLongError(f"{path.name} is longer than {MOST_BYTES} bytes")
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None


def read_note(cell: Path) -> dict[str, Any]:
    """What a study wrote beside a cell about its process; {} if there is nothing that can be read."""
    try:
        found = read_json(cell.with_name(f"{cell.name}.json"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
