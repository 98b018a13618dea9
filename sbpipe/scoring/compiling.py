"""Why torch.compile failed, in one line, and what helps. It must not know models or scorers."""

from collections.abc import Iterator
from contextlib import contextmanager

from sbpipe.errors import DeviceError

_MISSING = ("no working c++ compiler", "invalidcxxcompiler", "failed to find c compiler", "command not found")
_COMPILERS = ("c++", "g++", "gcc", "clang", "c compiler")


@contextmanager
def told(value: str) -> Iterator[None]:
    """A block that compiles; an error in it becomes a DeviceError for this value of `selector.compile`."""
    try:
        yield
    # torch's compiler, and the one it calls, raise errors of many types.
    except Exception as error:
        way_out = f"{way_out_of(error)}write selector.compile = false"
        raise DeviceError(
            f"selector.compile = {value}: the model cannot be compiled ({why_not_compiled(error)}). "
            f"{way_out[0].upper()}{way_out[1:]}"
        ) from error


def why_not_compiled(error: BaseException) -> str:
    """The innermost error: torch wraps it into errors whose first line names only the backend."""
    cause = _innermost(error)
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[0]}" if lines else type(cause).__name__


def way_out_of(error: BaseException) -> str:
    """What else helps, other than not compiling; "" where nothing is known."""
    text = f"{type(_innermost(error)).__name__}: {_innermost(error)}".lower()
    is_missing = any(sign in text for sign in _MISSING) or isinstance(_innermost(error), FileNotFoundError)
    if is_missing and any(name in text for name in _COMPILERS):
        return "A C++ compiler must be installed; or "
    return "Triton must be installed; or " if "tritonmissing" in text else ""


def _innermost(error: BaseException) -> BaseException:
    while (inner := getattr(error, "inner_exception", None) or error.__cause__) is not None:
        error = inner
    return error
