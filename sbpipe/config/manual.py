"""The settings as a page to read, docs/settings.md. Knows the schema, and no value that was given."""

import dataclasses
import sys
from typing import Any

from sbpipe.config.parser import KINDS, kind_of, range_of
from sbpipe.config.schema import SECTIONS, Config, known_keys
from sbpipe.config.writer import LOCAL_KEYS, LOCAL_SECTIONS, to_dict, toml_value

COMMAND = "python -m sbpipe.config.manual > docs/settings.md"

INTRODUCTION = f"""\
# Settings

<!-- Made from sbpipe/config by `{COMMAND}`; a test compares. Do not edit by hand. -->

Every setting, its default and what it means. A TOML file holds them by section (`configs/` has examples), and
`--set selection.keep=0.25` sets any of them on the command line. `sbpipe run --print-config` prints them as
resolved, with the same meanings, in a form that can be edited and run.

Trainer and selector must agree on all settings but these, which each chooses for itself, and which may change
when a run is resumed: the sections {", ".join(f"`{name}`" for name in LOCAL_SECTIONS)}, and
{", ".join(f"`{key}`" for key in LOCAL_KEYS)}.
"""


def render() -> str:
    """The whole page."""
    top = [key for key in known_keys() if "." not in key]
    sections = [_section(f"[{name}]", kind.__doc__, name) for name, kind in SECTIONS.items()]
    return "\n".join([INTRODUCTION, _table(top), *sections])


def _section(title: str, summary: str | None, name: str) -> str:
    keys = [key for key in known_keys() if key.startswith(f"{name}.")]
    return f"## `{title}`\n\n{summary}\n\n{_table(keys)}"


def _table(keys: list[str]) -> str:
    rows = ["| key | default | values | meaning |", "|---|---|---|---|", *(_row(key) for key in keys)]
    return "\n".join(rows) + "\n"


def _row(key: str) -> str:
    section, _, name = key.rpartition(".")
    tables, known = to_dict(Config()), known_keys()[key]
    default = tables[section][name] if section else tables[name]
    # A third has infinitely many decimals: a few are enough.
    shown = f"{default:.4g}" if isinstance(default, float) and len(str(default)) > 8 else toml_value(default)
    cells = (f"`{name}`", f"`{shown}`", _values(known), known.metadata["meaning"])
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _values(known: dataclasses.Field[Any]) -> str:
    """What may be given: the choices, or the kind and its limits."""
    limits = known.metadata
    if limits["choices"]:
        return ", ".join(f"`{choice}`" for choice in limits["choices"])
    words = [f"`{word}`" for word in limits["words"]]
    return " or ".join([", ".join(filter(None, (KINDS[kind_of(known)], range_of(limits)))), *words])


if __name__ == "__main__":
    sys.stdout.write(render())
