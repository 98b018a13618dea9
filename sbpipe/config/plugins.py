"""Callables that users name in their settings: how `module:function` is found, and which keywords one takes.

It must not know what a plug-in is for: the room that calls it says so and checks what it answers.
"""

import importlib
import inspect
import operator
import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from sbpipe.errors import ConfigError, SbpipeError


def is_plugin(spec: str) -> bool:
    """Whether a name in the settings is a `module:function` rather than one of ours."""
    return ":" in spec


HELD = "held:"
"""The prefix of the name of a function that is held, not imported."""
_held_objects: dict[str, Callable[..., Any]] = {}


def hold(key: str, function: Callable[..., Any]) -> str:
    """Hold a function without an importable name, for setting `key` in this process; returns its name."""
    spec = f"{HELD}{key}"
    _held_objects[spec] = function
    return spec


def _held(key: str, spec: str) -> Callable[..., Any]:
    if spec not in _held_objects:
        reason = "stands for a function that was given to sbpipe.train, and is known to that program alone"
        raise ConfigError(key, spec, reason, "Give it to sbpipe.train again, or name module:function")
    return _held_objects[spec]


def import_plugin(key: str, spec: str) -> Callable[..., Any]:
    """The callable that setting `key` names as `module:function`, or that is held for it."""
    if spec.startswith(HELD):
        return _held(key, spec)
    module_name, _, path = spec.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        way_out = "Write for instance mypackage.mymodule:myfunction"
        raise ConfigError(key, spec, "is not of the form module:function", way_out)
    try:
        module = _import_from_here(module_name)
    # A user's module may raise anything, and would raise it again at every start.
    except Exception as error:
        raise ConfigError(key, spec, *_why_not(module_name, error)) from error
    try:
        found = operator.attrgetter(path)(module)
    except AttributeError:
        public = (name for name, value in vars(module).items() if callable(value) and name[0] != "_")
        reason = f"module {module_name!r} ({getattr(module, '__file__', None) or 'built in'}) has no {path!r}"
        way_out = f"Its callables are: {', '.join(sorted(public)) or 'none'}"
        raise ConfigError(key, spec, reason, way_out) from None
    if not callable(found):
        reason = f"{path!r} is of type {type(found).__name__}, not callable"
        raise ConfigError(key, spec, reason, "Name a function or a class")
    return found  # type: ignore[no-any-return]  # callable() narrows to Callable[..., object]


def call_plugin(key: str, spec: str, function: Callable[..., Any]) -> Any:
    """What the callable that setting `key` named returns, called without arguments."""
    try:
        return function()
    # Lack of memory is reported as such, and our own errors as they are.
    except (SbpipeError, MemoryError):
        raise
    except Exception as error:
        reason = f"raised {type(error).__name__}: {error}{_line_of(error)}"
        raise ConfigError(
            key, spec, reason, "It is called without arguments. Fix it, or name another"
        ) from error


def _import_from_here(module_name: str) -> ModuleType:
    """Import a module; the working directory is searched first, as `python -m` does."""
    # An installed command has its own folder there instead, which holds no module of the user's.
    here = os.getcwd()
    sys.path.insert(0, here)
    # A module written a moment ago may be missing in the finder's cached listing of the folder.
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    finally:
        sys.path.remove(here)
        # Kept, for modules imported later, in a function or a loader process; put last, so that a user's file
        # does not hide a library that is imported later.
        if here not in sys.path:
            sys.path.append(here)


def _why_not(module_name: str, error: Exception) -> tuple[str, str]:
    """Why a module cannot be imported, and what to do."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{module_name}.".startswith(f"{missing}."):
        file = f"{module_name.split('.')[0]}.py"
        way_out = f"Check the spelling, install it, or start sbpipe where {file} lies (now {os.getcwd()})"
        return f"there is no module {missing!r}", way_out
    if missing:
        return f"module {module_name!r} needs {missing!r}, which is missing", f"Install {missing}"
    said = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
    return f"module {module_name!r} cannot be imported ({said}{_line_of(error)})", "Fix it, or name another"


def _line_of(error: Exception) -> str:
    """Where a module raised; a syntax error's text already says so."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, ImportError | SyntaxError) or not frames:
        return ""
    return f", {frames[-1].filename} line {frames[-1].lineno}"


def accepted_keywords(function: Callable[..., Any]) -> set[str] | None:
    """The keyword arguments a callable takes; None when it takes any (`**kwargs`) or does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    # Some built-in callables have no signature to ask for.
    except ValueError:
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {parameter.name for parameter in parameters if parameter.kind in by_keyword}
