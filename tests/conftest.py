"""What every test stands on: one thread, so that bits repeat, and a data cache of its own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread_and_own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    torch.set_num_threads(1)
    before = {name: os.environ.get(name) for name in ("XDG_CACHE_HOME", "OMP_NUM_THREADS")}
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["OMP_NUM_THREADS"] = "1"
    yield
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked gpu run where there is an accelerator."""
    if not torch.accelerator.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no accelerator on this machine"))


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    return tmp_path / "run"
