"""What is said of a model that cannot be compiled: what failed, and a compiler only where it is that."""

import pytest
import torch
from support.nets import candidates, net, scorer_of
from torch import Tensor, nn

from sbpipe.errors import DeviceError


class BackendFailed(RuntimeError):
    """As torch wraps what a backend raises."""

    def __init__(self, inner: Exception) -> None:
        super().__init__("backend='inductor' raised:\nmany lines")
        self.inner_exception = inner


class InvalidCxxCompiler(RuntimeError):
    """As torch's own of this name."""


@pytest.mark.parametrize(
    ("error", "told", "is_compiler"),
    [
        (OSError("c++: command not found"), "OSError: c", True),
        (
            BackendFailed(InvalidCxxCompiler("No working C++ compiler found in ('g++',)")),
            "InvalidCxxCompiler: No working",
            True,
        ),
        (BackendFailed(FileNotFoundError(2, "No such file", "g++")), "FileNotFoundError", True),
        (BackendFailed(NotImplementedError("aten::frobnicate on sim")), "aten::frobnicate on sim", False),
        (torch.OutOfMemoryError("out of memory"), "OutOfMemoryError", False),
        (RuntimeError("Dynamo does not know how to trace it"), "Dynamo does not know", False),
    ],
)
def test_the_error_names_what_failed_and_a_compiler_only_if_it_is_that(
    error: Exception, told: str, is_compiler: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: nn.Module, **options: object) -> nn.Module:
        def call(inputs: Tensor) -> Tensor:
            raise error

        return call  # type: ignore[return-value]

    monkeypatch.setattr(torch, "compile", fail)
    with pytest.raises(DeviceError, match=r"selector\.compile = true") as found:
        scorer_of(net(), compiled=True).prepare(*candidates())
    assert told in str(found.value)
    assert ("C++ compiler must be installed" in str(found.value)) == is_compiler
    assert "rite selector.compile = false" in str(found.value)
