"""How exactly a device computes: float32 in full while results are compared, and bits that repeat."""

import os
from collections.abc import Iterator

import pytest
import torch
from support.nets import CPU, candidates, net, scorer_of
from torch import Tensor, nn

from sbpipe.machine import numerics

CUDA = torch.device("cuda", 0)


@pytest.fixture
def _cpu_that_rounds() -> Iterator[None]:
    """A CPU that may round float32 products, as GPUs do unasked; whether it does is its affair."""
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    yield
    torch.backends.mkldnn.matmul.fp32_precision = "none"


class Witness(nn.Module):
    """A model that notes how exact float32 was in each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.seen = net(), list[str]()

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen.append(torch.backends.mkldnn.matmul.fp32_precision)
        outputs: Tensor = self.net(inputs)
        return outputs


@pytest.mark.usefixtures("_cpu_that_rounds")
def test_float32_is_full_meanwhile_and_as_before_afterwards() -> None:
    assert numerics.rounds_float32(CPU)
    with numerics.full_float32(CPU):
        assert not numerics.rounds_float32(CPU)
    assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"


def test_on_a_gpu_too_and_older_gpus_do_not_round(monkeypatch: pytest.MonkeyPatch) -> None:
    capability = [(8, 0)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability[0])
    assert numerics.rounds_float32(CUDA), "convolutions are allowed to, by default"
    with numerics.full_float32(CUDA):
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32, "both of torch's ways to read it still work"
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"
    capability[0] = (7, 0)
    assert not numerics.rounds_float32(CUDA)


@pytest.mark.usefixtures("_cpu_that_rounds")
def test_a_traced_model_is_compared_with_itself_in_full_float32() -> None:
    model = Witness()
    scorer = scorer_of(model)
    model.seen.clear()  # what tracing noted
    scorer.prepare(*candidates())
    assert model.seen[0] == "ieee", "what the model gives itself"
    assert torch.backends.mkldnn.matmul.fp32_precision == "bf16", "scored as the user allows it"


@pytest.mark.usefixtures("_cpu_that_rounds")
def test_scores_of_a_device_that_rounds_float32_are_checked_against_full_ones() -> None:
    model = Witness()
    scorer = scorer_of(model)
    assert not scorer.is_exact
    scorer.weights_arrived()
    model.seen.clear()
    scorer.score(*candidates())
    assert scorer.agreement.num_checks == 1
    assert "ieee" in model.seen


def test_scores_of_a_device_that_does_not_round_need_no_check() -> None:
    assert scorer_of(net()).is_exact


@pytest.fixture
def _as_it_was() -> Iterator[None]:
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    torch.backends.cudnn.benchmark = True
    torch.use_deterministic_algorithms(False)  # a clocked run on an accelerator leaves it on
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = before


@pytest.mark.usefixtures("_as_it_was")
def test_a_clock_on_an_accelerator_asks_for_deterministic_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    assert numerics.make_repeatable(CPU) == ""
    assert not torch.are_deterministic_algorithms_enabled(), "the CPU needs nothing"
    assert "deterministic" in numerics.make_repeatable(CUDA)
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8", "what the user set stays"
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    numerics.make_repeatable(CUDA)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
