"""Checks a run's files: only fields with the type that `names/` and the settings declare get through.

Anybody may have written these files. After this check numbers are numbers and texts are texts, so code that
shows a run only asks whether a field is there. Pure.
"""

from collections.abc import Callable, Mapping
from typing import Any

from sbpipe.config import known_keys
from sbpipe.config.parser import kind_of
from sbpipe.config.schema import SECTIONS
from sbpipe.runs.names.events import KINDS
from sbpipe.runs.names.fields import STAMP
from sbpipe.runs.names.summary import NUMBERS
from sbpipe.runs.numbers import is_number

Table = dict[str, Any]

MOST_LETTERS = 4000
MOST_NESTED = 8


def _text(value: object) -> str | None:
    """A text that can be written to a page: lone surrogates are escaped, and long texts are cut."""
    if not isinstance(value, str):
        return None
    return value[:MOST_LETTERS].encode("utf-8", "backslashreplace").decode()


def _number(value: object) -> float | None:
    return value if is_number(value) else None


def _numbers(value: object) -> list[float | None] | None:
    is_list = isinstance(value, list) and all(item is None or is_number(item) for item in value)
    return value if is_list else None  # type: ignore[return-value]  # narrowed by the line above


def _spans(value: object) -> dict[str, list[float]] | None:
    if not isinstance(value, dict):
        return None
    is_sound = all(isinstance(times, list) and all(map(is_number, times)) for times in value.values())
    return {str(_text(name)): times for name, times in value.items()} if is_sound else None


_BY_UNIT: dict[str, Callable[[object], Any]] = {
    "text": _text,
    "list": _numbers,
    "map": _spans,
    "yes/no": lambda value: value if isinstance(value, bool) else None,
}
"""A reader for values of each unit; units not listed are numbers. A reader returns None for a wrong type."""


def _readers(units: Mapping[str, str]) -> dict[str, Callable[[object], Any]]:
    return {name: _BY_UNIT.get(unit, _number) for name, unit in units.items()}


_STAMP = _readers({field.name: field.unit for field in STAMP})
_EVENTS = {
    kind.name: _STAMP | _readers({field.name: field.unit for field in kind.fields}) for kind in KINDS.values()
}
_FACT_TABLES = ("versions", "devices")
_SUMMARY = _readers({name: known.unit for name, known in NUMBERS.items()})


def event_of(found: object) -> Table | None:
    """An event with its known fields only; None if one of them has the wrong type."""
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        return None
    readers = _EVENTS.get(found["kind"], _STAMP)
    event = _believed(found, readers)
    if any(name in readers and name not in event for name in found):
        return None
    # Fields outside the stamp may be null: they do not apply, or are not known yet.
    return {name: value for name, value in event.items() if value is not None or name not in _STAMP}


def summary_of(found: object) -> Table:
    """The numbers of a run; unknown ones, of another version, are kept if they are texts or numbers."""
    if not isinstance(found, dict):
        return {}
    others = {
        name: _plain(value) for name, value in found.items() if name not in _SUMMARY and _is_flat(value, 0)
    }
    return _believed(found, _SUMMARY) | others


def _believed(found: Table, readers: Mapping[str, Callable[[object], Any]]) -> Table:
    """The known fields, with their values; null is a value."""
    believed = {}
    for name, value in found.items():
        read = readers.get(name)
        if read is not None and (value is None or (value := read(value)) is not None):
            believed[name] = value
    return believed


def settings_of(found: object) -> Table:
    """The tables of a run's settings: known keys with values of their type, and keys that are not ours."""
    if not isinstance(found, dict):
        return {}
    tables: Table = {}
    for section, table in found.items():
        if isinstance(table, dict):
            tables[str(_text(section))] = {
                str(_text(name)): _plain(value)
                for name, value in table.items()
                if _is_setting(f"{section}.{name}", value)
            }
        elif section not in SECTIONS and _is_setting(section, table):
            tables[str(_text(section))] = _plain(table)
    return tables


def _is_setting(key: str, value: object) -> bool:
    known = known_keys().get(key)
    if known is None or not _is_flat(value):
        return _is_flat(value)
    kind = kind_of(known)
    kinds = (kind, str) if known.metadata["words"] else (kind, int) if kind is float else (kind,)
    return isinstance(value, kinds)


def facts_of(found: object) -> Table:
    """Facts about the machine: texts and numbers; only known tables may be tables."""
    if not isinstance(found, dict) or not _is_flat(found):
        return {}
    facts: Table = _plain(found)
    return {name: value for name, value in facts.items() if (name in _FACT_TABLES) == isinstance(value, dict)}


def _plain(value: Any) -> Any:
    """A value whose every text can be written to a page."""
    if isinstance(value, dict):
        return {str(_text(name)): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return _text(value) if isinstance(value, str) else value


def _is_flat(value: object, left: int = MOST_NESTED) -> bool:
    """Whether tables and lists are nested at most `left` deep, and all numbers are ordinary."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return left > 0 and all(_is_flat(one, left - 1) for one in inner)
    return value is None or isinstance(value, str | bool) or is_number(value)
