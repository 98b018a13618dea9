"""From a line of a file that may be cut, damaged or forged to an event, or to nothing. Pure.

What readers get has the declared types: a line in which one field has another is as unreadable as a cut one.
"""

import json
from collections.abc import Callable
from typing import Any

from sbpipe.runs.names.events import KINDS
from sbpipe.runs.names.fields import STAMP, Field
from sbpipe.runs.numbers import is_number

Event = dict[str, Any]
_Check = Callable[[object], bool]


def event_of(line: bytes) -> Event | None:
    """The event that a line holds; None if it cannot be read."""
    try:
        # Python reads NaN and Infinity, which JSON does not have.
        event = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        return None
    checks = _CHECKS.get(event["kind"], _OF_STAMP)
    is_sound = all(
        value is None or name not in checks or checks[name](value) for name, value in event.items()
    )
    return event if is_sound else None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_truth(value: object) -> bool:
    return isinstance(value, bool)


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(one is None or is_number(one) for one in value)


def _is_map(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(numbers, list) and all(map(is_number, numbers)) for numbers in value.values()
    )


_BY_UNIT: dict[str, _Check] = {"text": _is_text, "yes/no": _is_truth, "list": _is_list, "map": _is_map}


def check_of(unit: str) -> _Check:
    """Whether a value is what a field of this unit holds."""
    return _BY_UNIT.get(unit, is_number)


def _checks_of(fields: tuple[Field, ...]) -> dict[str, _Check]:
    return {field.name: check_of(field.unit) for field in fields}


_OF_STAMP = _checks_of(STAMP)
_CHECKS = {name: _OF_STAMP | _checks_of(kind.fields) for name, kind in KINDS.items()}
