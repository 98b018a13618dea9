"""Writes a Config for people (TOML), for programs (JSON), and as a digest that two roles compare."""

import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from sbpipe.config.parser import flatten, resolve
from sbpipe.config.schema import RETIRED, Config, known_keys

# What each role may choose for itself; the rest both sides must agree on, and a resumed run must keep.
LOCAL_SECTIONS = ("selector", "link", "checkpoint", "eval", "trackers")
LOCAL_KEYS = (
    "data.path",
    "data.workers",
    "data.download",
    "train.device",
    "train.threads",
    # A batch does not depend on the number of ranks: a run may go on with more or fewer of them.
    "train.ranks",
    "train.ranks_wait_s",
    "train.shard",
)


BUDGETS = ("train.epochs", "train.steps", "train.seconds")
"""What may grow when a run is resumed: its length."""


def to_dict(config: Config) -> dict[str, Any]:
    """The whole config as nested plain values."""
    return dataclasses.asdict(config)


def from_dict(tables: Mapping[str, Any]) -> Config:
    """The inverse of `to_dict`, checked again."""
    # A program wrote these, so leftovers of an older version are no mistake of the user's.
    return resolve({key: value for key, value in flatten(tables).items() if key not in RETIRED})


def to_json(config: Config) -> str:
    """The form programs read."""
    return json.dumps(to_dict(config), indent=2) + "\n"


def to_toml(config: Config) -> str:
    """The form people read, each key with its meaning."""
    lines: list[str] = []
    tables = to_dict(config)
    for key, known in known_keys().items():
        section, _, name = key.rpartition(".")
        if section and f"[{section}]" not in lines:
            lines += ["", f"[{section}]"]
        value = tables[section][name] if section else tables[name]
        assignment = f"{name} = {toml_value(value)}"
        lines.append(f"{assignment:<36} # {known.metadata['meaning']}")
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """One value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml_value(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(inner) for inner in value) + "]"
    # JSON writes text, numbers and true or false as TOML does.
    return json.dumps(value, ensure_ascii=False)


def is_local(key: str) -> bool:
    """Whether each role may choose this key for itself."""
    return key.partition(".")[0] in LOCAL_SECTIONS or key in LOCAL_KEYS


def budget(config: Config) -> dict[str, Any]:
    """The one setting that ends a run, by its key."""
    train = config.train
    if train.steps or train.seconds:
        return {"train.steps": train.steps} if train.steps else {"train.seconds": train.seconds}
    return {"train.epochs": train.epochs}


def digest(config: Config, *, but: Collection[str] = ()) -> str:
    """A fingerprint of everything that decides what is trained; equal on both sides of the wire.

    `but` leaves keys out: BUDGETS where a run may have been lengthened.
    """
    settings = flatten(to_dict(config))
    shared = {key: value for key, value in settings.items() if not is_local(key) and key not in but}
    # Sorted, so that the order in which fields are declared does not make two versions disagree.
    return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:16]
