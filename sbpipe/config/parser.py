"""Makes a checked Config from TOML, assignments and dictionaries. Other code trusts it."""

import dataclasses
import difflib
import math
import tomllib
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from sbpipe.config.rules import check_together
from sbpipe.config.schema import RETIRED, SECTIONS, Config, known_keys
from sbpipe.errors import ConfigError

_BEYOND = 2**1000
KINDS = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    list: "list",
    dict: "table",
}
"""The types of values, in words."""


def read_toml(path: Path) -> dict[str, Any]:
    """The dotted keys and values of a TOML file."""
    return flatten(read_tables(path, "config file", "configs/"))


def read_tables(path: Path, what: str, examples: str) -> dict[str, Any]:
    """The tables of a TOML file, as they stand there. An error says `what` it is and where `examples` are."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(what, str(path), f"cannot be read ({error.strerror})", "Check the path") from None
    # Other errors than TOML's own: text that is not UTF-8, numbers of thousands of digits, deep nesting.
    except (ValueError, RecursionError) as error:
        raise ConfigError(what, str(path), f"is not TOML ({error})", f"See {examples} for examples") from None


def flatten(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables as dotted keys; tables that are themselves values (`model.options`) stay whole."""
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        if name in SECTIONS and not isinstance(value, Mapping):
            raise ConfigError(name, value, "is a section, not a value", f"Write [{name}] and keys below it")
        if isinstance(value, Mapping):
            flat.update({f"{name}.{inner}": inner_value for inner, inner_value in value.items()})
        else:
            flat[name] = value
    return flat


def parse_assignment(text: str) -> tuple[str, Any]:
    """`key=value` of the command line; the value is TOML, or a bare string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(
            "--set",
            text,
            "is not an assignment",
            "Write --set key=value, for instance --set selection.keep=0.25",
        )
    try:
        # As in a file, so that 0.25, true and [1, 2] have the same type on the command line.
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        # The shell has removed the quotes that TOML needs: policy=sb.
        return key.strip(), value.strip()


def resolve(*layers: Mapping[str, Any]) -> Config:
    """The defaults, overridden by each layer of dotted keys in turn, checked."""
    keys = known_keys()
    values: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if key not in keys:
                raise _unknown_key(key, value, list(keys))
            values[key] = _checked(key, value, keys[key])
    sections: dict[str, Any] = {
        name: kind(
            **{key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{name}.")}
        )
        for name, kind in SECTIONS.items()
    }
    plain: dict[str, Any] = {key: value for key, value in values.items() if "." not in key}
    config = Config(**sections, **plain)
    check_together(config)
    return config


def _unknown_key(key: str, value: Any, keys: list[str]) -> ConfigError:
    if key in RETIRED:
        return ConfigError(key, value, "is no setting any more", f"Leave it out: {RETIRED[key]}")
    # Without a cutoff there is always a nearest key.
    near = difflib.get_close_matches(key, keys, n=1, cutoff=0.0)
    # `--set keep=0.25` means selection.keep, though other keys are nearer by letters.
    same_name = [known for known in keys if known.rpartition(".")[2] == key.rpartition(".")[2]]
    return ConfigError(
        key,
        value,
        "unknown key",
        f"The nearest known key is {(same_name or near)[0]}; `sbpipe run --print-config` lists them all",
    )


def _checked(key: str, value: Any, known: dataclasses.Field[Any]) -> Any:
    """A value converted for its key; refused if it has another type, is no choice or out of range."""
    limits, kind = known.metadata, kind_of(known)
    if isinstance(value, str) and value in limits["words"]:
        return value
    value = _as_kind(key, value, kind, limits)
    if kind is list:
        each = get_args(known.type)[0]
        return [_in_range(key, _as_kind(key, item, each, limits), limits) for item in value]
    if limits["choices"] and value not in limits["choices"]:
        near = difflib.get_close_matches(str(value), limits["choices"], n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise ConfigError(key, value, "unknown value", f"{hint}It is one of {', '.join(limits['choices'])}")
    return _in_range(key, value, limits)


def _as_kind(key: str, value: Any, kind: Any, limits: Mapping[str, Any]) -> Any:
    # In Python True is an int, in TOML it is not: `steps = true` is a mistake.
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        # A whole number of hundreds of digits is too large for a float, and for every range.
        value = float(value) if abs(value) < _BEYOND else (math.inf if value > 0 else -math.inf)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        words = "".join(f" or {word!r}" for word in limits["words"])
        article = "" if kind is bool else "a "
        raise ConfigError(
            key, value, f"must be {article}{KINDS[kind]}{words}", f"It means: {limits['meaning']}"
        )
    # Control characters would act on a terminal, and lone surrogates cannot be written to a file.
    if kind is str and any(unicodedata.category(letter) in ("Cc", "Cs") for letter in value):
        raise ConfigError(key, value, "holds characters that are no text", "Write it without them")
    return value


def _in_range(key: str, value: Any, limits: Mapping[str, Any]) -> Any:
    # Each is negated, because no comparison with NaN holds: NaN is out of every range.
    below = limits["low"] is not None and not value >= limits["low"]
    beyond = limits["high"] is not None and not value <= limits["high"]
    not_above = limits["above"] is not None and not value > limits["above"]
    if below or beyond or not_above:
        raise ConfigError(key, value, f"must be {range_of(limits)}", f"It means: {limits['meaning']}")
    return value


def kind_of(known: dataclasses.Field[Any]) -> Any:
    """The type of a key's values, without what words may stand in their place or what a list is of."""
    if known.metadata["words"]:
        return next(kind for kind in get_args(known.type) if kind is not str)
    return get_origin(known.type) or known.type


def range_of(limits: Mapping[str, Any]) -> str:
    """The limits of a number in words; empty if it has none."""
    words = {"low": "at least", "above": "above", "high": "at most"}
    return " and ".join(
        f"{word} {_limit(limits[name])}" for name, word in words.items() if limits[name] is not None
    )


def _limit(number: float) -> str:
    """A limit as people write it: 10, not 10.0, but 1e+30."""
    return str(int(number)) if number == int(number) and abs(number) < 2**64 else f"{number:g}"
