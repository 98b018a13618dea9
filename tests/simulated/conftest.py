"""Tests of this folder need the simulated accelerators in their process; each begins with clean counts."""

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import simulated


class NotHere(pytest.Module):
    """A file of tests that is not read: already the names of the devices would be errors."""

    def collect(self) -> NoReturn:
        """Skip it, and say what is missing."""
        if simulated.is_available():
            pytest.skip("no simulated accelerators: set PYTHONPATH=tests/simulated/plugin, as make test does")
        pytest.skip("no C++ compiler (g++) to make the simulated accelerators with")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Leave files to pytest where the devices are."""
    return None if simulated.is_loaded() else NotHere.from_parent(parent, path=module_path)


@pytest.fixture(autouse=True)
def clean_devices() -> Iterator[None]:
    simulated.trace(True)
    simulated.reset()
    yield
    simulated.trace(False)
    simulated.set_copies()
    for index in range(2):
        simulated.set_slowness(index, 1.0)
        simulated.set_kernel_s(index, None)
        simulated.keep_costs(index, False)
        simulated.set_memory(index)
