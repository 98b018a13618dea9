"""What every test stands on: one thread, so that bits repeat, and a data cache of its own."""

import gc
import inspect
import os
import signal
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from types import CodeType, FunctionType

import pytest
import torch
from hypothesis import HealthCheck, settings
from support import browser, runs
from support.order import slow_first

from sbpipe.link.private import VARIABLE


@pytest.fixture(autouse=True, scope="session")
def one_thread_and_own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    torch.set_num_threads(1)
    before = {name: os.environ.get(name) for name in ("XDG_CACHE_HOME", "OMP_NUM_THREADS", VARIABLE)}
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["OMP_NUM_THREADS"] = "1"
    # Of its own, for other trainers may be at work here; short, as the path of a socket must be.
    with tempfile.TemporaryDirectory(prefix="sb-") as sockets:
        os.environ[VARIABLE] = sockets
        yield
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


# Hypothesis gives an example 200 ms of its own accord, which a busy machine may exceed.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# A suite that a script runs in the background ignores Ctrl-C, and so would all that it starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

STARTERS = (subprocess, runs._PROCESSES, runs.Forked, browser.Browser)
"""Through these, and nothing else, a test starts a process or a browser."""


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Tests marked gpu run where there is an accelerator; those that start a process are slow."""
    has_accelerator = torch.accelerator.is_available()
    for item in items:
        if "gpu" in item.keywords and not has_accelerator:
            item.add_marker(pytest.mark.skip(reason="no accelerator on this machine"))
        if any(starts_a_process(function) for function in functions_of(item)):
            item.add_marker(pytest.mark.slow)
    yield
    num_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if num_workers > 1:
        files, is_slow = [str(item.path) for item in items], ["slow" in item.keywords for item in items]
        items[:] = [items[position] for position in slow_first(files, is_slow, num_workers)]
    # Torch and thousands of tests stay until the end: every full collection would look through them.
    gc.freeze()


def functions_of(item: pytest.Item) -> list[FunctionType]:
    """A test and its fixtures."""
    assert isinstance(item, pytest.Function)
    fixtures = [found[-1].func for found in item._fixtureinfo.name2fixturedefs.values()]
    return [function for function in (item.function, *fixtures) if isinstance(function, FunctionType)]


def starts_a_process(function: FunctionType, seen: set[FunctionType] | None = None) -> bool:
    """Whether it names a starter, or a helper of the tests that does.

    Found out here, so that nobody has to remember a marker; a test that is slow for another reason, such as a
    long training, is marked by hand.
    """
    seen = {function} if seen is None else seen | {function}
    values = [unwrap(function.__globals__.get(name)) for name in names_in(function.__code__)]
    helpers = [value for value in values if isinstance(value, FunctionType) and value not in seen]
    return any(value is starter for value in values for starter in STARTERS) or any(
        starts_a_process(helper, seen) for helper in helpers if not helper.__module__.startswith("sbpipe")
    )


def unwrap(value: object) -> object:
    """The function below a decorator."""
    return inspect.unwrap(value) if isinstance(value, FunctionType) else value


def names_in(code: CodeType) -> set[str]:
    """All names that a function, and functions within it, look up."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(names_in, inner))


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    return tmp_path / "run"
