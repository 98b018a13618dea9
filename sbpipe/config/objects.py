"""Functions given as they are, where settings have names: `sbpipe.train({"model.name": build})`.

A function of a module becomes `module:function`, which every process can import. Any other one, such as a
lambda or one of a notebook, is held for this process alone. It must not know what a function is for.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from sbpipe.config.plugins import HELD, hold
from sbpipe.config.schema import known_keys
from sbpipe.errors import ConfigError

_MAIN = "__main__"


def named(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The settings with a name for each function, and the keys of those that only this process can call."""
    found, only_here = dict(settings), []
    for key, value in settings.items():
        if not callable(value):
            continue
        takes = [known for known, field in known_keys().items() if "code" in field.metadata["reaches"]]
        if key not in takes:
            raise ConfigError(
                key, value, "is a function, which this setting does not take", f"Those are {', '.join(takes)}"
            )
        found[key] = _importable(value) or hold(key, value)
        if found[key].startswith((f"{_MAIN}:", HELD)):
            only_here.append(key)
    return found, only_here


def refuse_apart(given: Mapping[str, Any], only_here: list[str], mode: str) -> None:
    """Refuse functions of this process alone for a run in processes of its own."""
    if not only_here:
        return
    key, is_inline = only_here[0], mode == "inline"
    what = "a run with trackers or several ranks" if is_inline else f"mode {mode!r}"
    reason = (
        f"{what} runs in processes of its own, which can import no function of a notebook, a "
        "program's own file or another function"
    )
    way_out = "Leave out trackers.* and train.ranks" if is_inline else "Set mode = 'inline'"
    raise ConfigError(
        key, given[key], reason, f"{way_out}, or move it into a module and import it from there"
    )


def _importable(function: Callable[..., Any]) -> str:
    """The name by which the same object can be imported; "" if there is none."""
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str):
        return ""
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return f"{module}:{path}" if found is function else ""
