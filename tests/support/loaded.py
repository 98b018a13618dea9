"""Processes that have torch loaded from their beginning: forked, where they would be started anew.

What `sbpipe run` starts, or torchrun, spends most of its time with loading torch. Here it is a process of its
own all the same, with its own command line, environment, files and signals; what is not shown is that the
interpreter starts.
"""

import atexit
import ctypes
import functools
import gc
import logging
import mmap
import os
import runpy
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from typing import Any, NoReturn

_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_LAYOUT = ("code", "code_end", "data", "data_end", "heap", "heap_end", "stack")
_LAYOUT += ("arguments", "arguments_end", "environment", "environment_end")
_IN_STAT = {"code": 26, "code_end": 27, "stack": 28, "data": 45, "data_end": 46, "heap": 47}
"""The fields of /proc/PID/stat, counted from 1 as proc(5) does."""

_shown = list[mmap.mmap]()
"""The memory that other processes read."""


class _Map(ctypes.Structure):
    """`struct prctl_mm_map`."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in _LAYOUT),
        ("auxiliary", ctypes.c_uint64),
        ("auxiliary_size", ctypes.c_uint32),
        ("executable", ctypes.c_uint32),
    )


class LoadedPopen(subprocess.Popen[Any]):
    """Forks this process where `python -m MODULE` would be started; starts everything else."""

    def __init__(self, args: Any, *given: Any, **kwargs: Any) -> None:
        words = [] if isinstance(args, str | bytes | os.PathLike) else [os.fspath(word) for word in args]
        # torchrun adds -u: what its ranks write comes at once.
        options = words[1 : words.index("-m")] if "-m" in words else None
        if words[:1] == [sys.executable] and options in ([], ["-u"]) and not given:
            environment = kwargs.get("env")
            become = functools.partial(
                become_module,
                words,
                {**os.environ} if environment is None else dict(environment),
                kwargs.get("pass_fds", ()),
                kwargs.get("preexec_fn"),
            )
            # What is not written yet would be written twice.
            sys.stdout.flush()
            sys.stderr.flush()
            kwargs["preexec_fn"] = become
        super().__init__(args, *given, **kwargs)


def start_loaded() -> None:
    """From here on all that this process starts, and what that starts, is forked."""
    gc.freeze()
    subprocess.Popen = LoadedPopen  # type: ignore[misc]


def become_module(
    words: Sequence[str],
    environment: Mapping[str, str],
    files: Collection[int],
    before: Callable[[], object] | None,
) -> None:
    """Become `python -m MODULE ...` in a process that was just forked; returns where that cannot be seen.

    Then the process is started as ever.
    """
    if before is not None:
        before()
    try:
        show_as(words, environment)
    except OSError:
        return
    try:
        _run_module(words, environment, files)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        _leave(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:  # noqa: BLE001 - as at the end of a program
        traceback.print_exc()
        _leave(1)


def show_as(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Show this command line and environment to others; OSError where the kernel does not let us."""
    texts = list(map(os.fsencode, words))
    variables = [os.fsencode(f"{name}={value}") for name, value in environment.items()]
    first, second = (b"".join(text + b"\0" for text in part) for part in (texts, variables))
    memory = mmap.mmap(-1, len(first) + len(second) + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(first + second)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b") ")[2].split()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_uint64, [ctypes.c_long]
    middle = begin + len(first)
    layout = {name: int(fields[number - 3]) for name, number in _IN_STAT.items()} | {
        "heap_end": libc.sbrk(0),
        "arguments": begin,
        "arguments_end": middle,
        "environment": middle,
        "environment_end": middle + len(second),
    }
    given = _Map(**layout, executable=2**32 - 1)
    size = ctypes.c_ulong(ctypes.sizeof(given))
    zero = ctypes.c_ulong(0)
    if libc.prctl(_PR_SET_MM, ctypes.c_ulong(_PR_SET_MM_MAP), ctypes.byref(given), size, zero):
        raise OSError(ctypes.get_errno(), "PR_SET_MM_MAP")
    _shown.append(memory)


def _run_module(words: Sequence[str], environment: Mapping[str, str], files: Collection[int]) -> NoReturn:
    # Nothing of the other process is freed here: its files are closed, and their numbers others' soon.
    gc.freeze()
    _close_all_but({0, 1, 2, *files})
    _forget_signals()
    _forget_helpers()
    os.environ.clear()
    os.environ.update(environment)
    path = [os.getcwd(), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:0] = [folder for folder in path if folder not in sys.path]
    module = words.index("-m") + 1
    sys.argv = list(words[module:])
    if "-u" in words[:module]:
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    runpy.run_module(words[module], run_name="__main__", alter_sys=True)
    raise SystemExit(0)


def _close_all_but(files: Collection[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in files:
            # The listing's own is closed already.
            os.closerange(int(name), int(name) + 1)


def _forget_signals() -> None:
    """As after the start of an interpreter: what is ignored stays so."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def _forget_helpers() -> None:
    """Handlers of logs, and the helpers of multiprocessing, are the other process's."""
    logging.getLogger().handlers.clear()
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None
    server: Any = forkserver._forkserver
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


def _leave(code: int) -> NoReturn:
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
