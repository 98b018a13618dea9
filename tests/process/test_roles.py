"""What a role opens, and that a start that fails leaves none of it open."""

from pathlib import Path

import pytest
import torch
from support.runs import small, train_inline
from torch import nn

from sbpipe.errors import DeviceError
from sbpipe.runs.directory import RunDir
from sbpipe.scoring import int8


def test_a_precision_that_the_device_lacks_is_refused_before_anything_is_opened(
    run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"selector\.precision = 'int8'"):
        train_inline(small(mode="inline", selector__precision="int8"), run_path)
    assert not run_path.exists()


def test_a_start_that_fails_later_lets_go_of_the_run_directory(
    run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: nn.Module, **options: object) -> nn.Module:
        raise OSError("no compiler")

    monkeypatch.setattr(torch, "compile", fail)
    with pytest.raises(OSError, match="no compiler"):
        train_inline(small(mode="inline", selector__compile=True), run_path)
    # Another trainer, in this process too, would be refused while the lock is held.
    RunDir.open(run_path, resume=False, overwrite=True).close()
