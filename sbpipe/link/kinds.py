"""Kinds of header fields: which plain values each may hold, checked the same on both sides.

Pure rules over plain values. It must not know which messages there are, nor msgpack, frames or sockets.
"""

import enum
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sbpipe.errors import FrameError
from sbpipe.link.limits import MAX_COUNT, MAX_ENTRIES

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}", re.ASCII)
Z85 = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}", re.ASCII)
"""A key of CURVE as text."""


class BadFrame(FrameError):
    """A message is refused; `reason` is the word under which it is counted."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class Kind:
    """One kind of header field."""

    def plain(self, value: Any) -> Any:
        """Our value as the plain Python value to send (NumPy scalars become Python's)."""
        raise NotImplementedError

    def is_legal(self, value: Any) -> bool:
        """Whether a plain value may be in this field."""
        raise NotImplementedError

    def restored(self, value: Any) -> Any:
        """The receiver's value of a legal plain one."""
        return value


@dataclass(frozen=True)
class Whole(Kind):
    """An integer in a range."""

    low: int = 0
    high: int = MAX_COUNT

    def plain(self, value: Any) -> Any:
        """As int; floats are refused."""
        # Not int(), which would turn 1.5 into 1.
        return operator.index(value)

    def is_legal(self, value: Any) -> bool:
        """An int, not a bool, inside the range."""
        return type(value) is int and self.low <= value <= self.high


@dataclass(frozen=True)
class Flag(Kind):
    """A bool."""

    def plain(self, value: Any) -> Any:
        """As bool."""
        return bool(value)

    def is_legal(self, value: Any) -> bool:
        """Exactly a bool."""
        return type(value) is bool


@dataclass(frozen=True)
class Real(Kind):
    """A number in a range, never NaN; `is_clipped` clips what we send to the range."""

    low: float
    high: float
    is_clipped: bool = False
    is_optional: bool = False

    def plain(self, value: Any) -> Any:
        """As float, clipped where that is allowed."""
        if value is None:
            return None
        return min(max(float(value), self.low), self.high) if self.is_clipped else float(value)

    def is_legal(self, value: Any) -> bool:
        """A float inside the range, or None where that is allowed."""
        if value is None:
            return self.is_optional
        return type(value) is float and self.low <= value <= self.high


@dataclass(frozen=True)
class Text(Kind):
    """A string of limited length; `is_clipped` cuts what we send instead of refusing it."""

    limit: int = 255
    pattern: re.Pattern[str] | None = None
    is_clipped: bool = False

    def plain(self, value: Any) -> Any:
        """The string, clipped where that is allowed."""
        return value[: self.limit] if self.is_clipped else value

    def is_legal(self, value: Any) -> bool:
        """A str within the limit that matches the pattern."""
        return (
            type(value) is str
            and len(value) <= self.limit
            and (self.pattern is None or self.pattern.fullmatch(value) is not None)
        )


@dataclass(frozen=True)
class Texts(Kind):
    """A small map from names to strings."""

    limit: int = 128

    def plain(self, value: Any) -> Any:
        """As dict."""
        return dict(value)

    def is_legal(self, value: Any) -> bool:
        """Few entries, short keys, strings within the limit."""
        return _is_small_map(value) and all(
            type(inner) is str and len(inner) <= self.limit for inner in value.values()
        )


@dataclass(frozen=True)
class Member(Kind):
    """A member of an enum, sent as its value."""

    of: type[enum.Enum]

    def plain(self, value: Any) -> Any:
        """The value of the member."""
        return self.of(value).value

    def is_legal(self, value: Any) -> bool:
        """The value of a member, with its exact type: 1 is not True."""
        return any(type(value) is type(member.value) and value == member.value for member in self.of)

    def restored(self, value: Any) -> Any:
        """The member."""
        return self.of(value)


@dataclass(frozen=True)
class Record(Kind):
    """A map of exactly the fields of a record."""

    of: type[Any]
    fields: Mapping[str, Kind]
    is_optional: bool = False

    def plain(self, value: Any) -> Any:
        """As dict, or None."""
        if value is None:
            return None
        return {name: kind.plain(getattr(value, name)) for name, kind in self.fields.items()}

    def is_legal(self, value: Any) -> bool:
        """No field missing, none unknown, each legal; or None where that is allowed."""
        if value is None:
            return self.is_optional
        if type(value) is not dict or value.keys() != self.fields.keys():
            return False
        # A loop, not `all` over a generator, for speed: this runs for each answer of each selector.
        for name, is_legal in self._rules:  # noqa: SIM110
            if not is_legal(value[name]):
                return False
        return True

    @cached_property
    def _rules(self) -> list[tuple[str, Callable[[Any], bool]]]:
        return [(name, kind.is_legal) for name, kind in self.fields.items()]

    def restored(self, value: Any) -> Any:
        """The record."""
        if value is None:
            return None
        return made(self.of, value if self._is_plain else self._restored(value))

    @cached_property
    def _is_plain(self) -> bool:
        """Whether every field arrives as its final value."""
        return all(type(kind).restored is Kind.restored for kind in self.fields.values())

    def _restored(self, value: Any) -> dict[str, Any]:
        return {name: kind.restored(value[name]) for name, kind in self.fields.items()}


def made(of: type[Any], fields: Mapping[str, Any]) -> Any:
    """A frozen record of exactly these fields. Its constructor would set each field by a call, which is
    slower.
    """
    record = object.__new__(of)
    record.__dict__.update(fields)
    return record


def _is_small_map(value: Any) -> bool:
    return (
        type(value) is dict
        and len(value) <= MAX_ENTRIES
        and all(type(name) is str and 0 < len(name) <= 64 for name in value)
    )
