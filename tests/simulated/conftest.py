"""Tests of this folder need the simulated accelerators in their process; each begins with clean counts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import simulated

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot run here, and say what is missing."""
    if simulated.is_loaded():
        return
    if simulated.is_available():
        reason = "no simulated accelerators here: set PYTHONPATH=tests/simulated/plugin, as make test does"
    else:
        reason = "no C++ compiler (g++) to make the simulated accelerators with"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def clean_devices() -> Iterator[None]:
    if not simulated.is_loaded():
        yield
        return
    simulated.trace(True)
    simulated.reset()
    yield
    simulated.trace(False)
    simulated.set_copies()
    for index in range(2):
        simulated.set_slowness(index, 1.0)
        simulated.set_kernel_s(index, None)
        simulated.set_memory(index)
