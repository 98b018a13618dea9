"""Callables that users name in their settings: how `module:function` is found, and which keywords a callable
takes.

It must not know what a plug-in is for: the room that calls it says so and checks what it answers.
"""

import importlib
import inspect
import operator
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sbpipe.errors import ConfigError


def is_plugin(spec: str) -> bool:
    """Whether a name in the settings is a `module:function` rather than one of ours."""
    return ":" in spec


def import_plugin(key: str, spec: str) -> Callable[..., Any]:
    """The callable that setting `key` names as `module:function`; the current directory is searched first."""
    module_name, _, path = spec.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise ConfigError(
            key,
            spec,
            "is not of the form module:function",
            "Write for instance mypackage.mymodule:myfunction",
        )
    try:
        with _current_directory_first():
            module = importlib.import_module(module_name)
    except ImportError as error:
        way_out = f"Install it, or start sbpipe where {module_name.split('.')[0]}.py lies (now {os.getcwd()})"
        raise ConfigError(
            key, spec, f"module {module_name!r} cannot be imported ({error})", way_out
        ) from error
    try:
        found = operator.attrgetter(path)(module)
    except AttributeError:
        public = [
            name for name, value in vars(module).items() if callable(value) and not name.startswith("_")
        ]
        way_out = f"Its callables are: {', '.join(sorted(public)) or 'none'}"
        raise ConfigError(
            key, spec, f"module {module_name!r} ({_file(module)}) has no {path!r}", way_out
        ) from None
    if not callable(found):
        raise ConfigError(
            key,
            spec,
            f"{path!r} is of type {type(found).__name__}, not callable",
            "Name a function or a class",
        )
    return found  # type: ignore[no-any-return]  # callable() narrows to Callable[..., object]


def accepted_keywords(function: Callable[..., Any]) -> set[str] | None:
    """The keyword arguments a callable takes; None when it takes any (`**kwargs`) or does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {parameter.name for parameter in parameters if parameter.kind in by_keyword}


@contextmanager
def _current_directory_first() -> Iterator[None]:
    here = os.getcwd()
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(here)


def _file(module: object) -> str:
    return str(getattr(module, "__file__", None) or "built in")
