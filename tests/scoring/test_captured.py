"""Passes that are recorded once: replayed, they read the weights of now. The recorder is a fake."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.nets import candidates, exact_losses, net, scorer_of, unsettled
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sbpipe.config import resolve
from sbpipe.errors import ConfigError, DeviceError
from sbpipe.scoring import captured, fused
from sbpipe.scoring.captured import Captured, check_way
from sbpipe.scoring.own_scorer import OwnScorer

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


class Recorder(TorchDispatchMode):
    """A device's graph on the CPU: the kernels of a pass with the memory they read and write, as they ran."""

    def __init__(self) -> None:
        super().__init__()
        self._kernels: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._kernels.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self._kernels:
            new = func(*args, **kwargs)
            if isinstance(out, Tensor) and out.data_ptr() != new.data_ptr():
                out.copy_(new)


def record(run: Callable[[Tensor], Tensor], inputs: Tensor) -> tuple[Tensor, Callable[[], Any]]:
    run(inputs)  # as on a device, some passes come first
    recorder = Recorder()
    with recorder:
        outputs = run(inputs)
    return outputs, recorder.replay


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A CPU that records: how often it did."""
    calls: list[int] = []

    def counted(run: Callable[[Tensor], Tensor], inputs: Tensor) -> tuple[Tensor, Callable[[], Any]]:
        calls.append(len(inputs))
        return record(run, inputs)

    monkeypatch.setattr(captured, "on_device", counted)
    monkeypatch.setattr(captured, "check_way", lambda *_, **__: None)
    monkeypatch.setattr("sbpipe.scoring.scorer.check_way", lambda *_, **__: None)
    # An accelerator has no oneDNN, whose packed weights are made anew.
    monkeypatch.setattr(fused, "_has_kernel", lambda *_: False)
    return calls


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["small_cnn", "small_resnet", "wide_resnet"])
def test_a_recorded_pass_scores_with_the_weights_of_now(
    name: str, precision: str, recorded: list[int]
) -> None:
    scorer = scorer_of(unsettled(net(name)), precision, compiled="graph")  # type: ignore[arg-type]
    scorer.prepare(*candidates())
    before = scorer.score(*candidates())
    del recorded[:]
    for count in (32, 7, 32):
        with torch.no_grad():
            for tensor in scorer.model.state_dict().values():
                if tensor.is_floating_point():
                    tensor.mul_(1.07)
        scorer.weights_arrived()
        inputs, targets = candidates(count)
        wanted = exact_losses(scorer.model, inputs, targets)
        assert np.allclose(scorer.score(inputs, targets), wanted, rtol=0.05, atol=0.05)
        assert not np.allclose(wanted, before[:count], rtol=0.01)
    assert recorded == [], "new weights and fewer candidates record nothing anew"


def test_more_candidates_than_ever_are_recorded_anew(recorded: list[int]) -> None:
    scorer = scorer_of(net(), compiled="graph")  # type: ignore[arg-type]
    scorer.prepare(*candidates(8))
    inputs, targets = candidates(24)
    assert np.allclose(scorer.score(inputs, targets), exact_losses(scorer.model, inputs, targets), atol=1e-4)
    assert recorded[-1] == 24


def test_outputs_are_the_callers_own() -> None:
    run = Captured(nn.Linear(4, 2), record)
    with torch.inference_mode():
        first = run(torch.ones(3, 4))
        kept = first.clone()
        run(torch.zeros(3, 4))
        assert torch.equal(first, kept)


def test_a_graph_is_refused_where_there_is_none_and_the_way_out_is_named() -> None:
    with pytest.raises(DeviceError, match=r"selector.compile = 'graph': a CPU records no graphs. Write true"):
        scorer_of(net(), compiled="graph")  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match=r"change their shapes. Write 'reduce-overhead' or false"):
        OwnScorer(nn.Linear(1, 1), lambda model, batch: batch, precision="fp32", device=CPU, compiled="graph")
    check_way("graph", CUDA, is_own=False)


def test_low_overhead_is_told_to_gain_nothing_on_a_cpu(caplog: pytest.LogCaptureFixture) -> None:
    check_way("reduce-overhead", CUDA, is_own=False)
    assert caplog.text == ""
    check_way("reduce-overhead", CPU, is_own=False)
    assert "selector.compile = 'reduce-overhead': graphs are recorded on CUDA only" in caplog.text


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | None]]:
    """The modes that torch.compile is asked for; the code is left out, capture and guards are torch's own."""
    seen: list[str | None] = []
    real = partial(torch.compile, backend="eager")

    def note(run: nn.Module, *, mode: str | None = None, **options: Any) -> Any:
        seen.append(mode)
        return real(run, **options)

    monkeypatch.setattr(torch, "compile", note)
    yield seen
    torch.compiler.reset()


@pytest.mark.parametrize(("given", "mode"), [(True, None), ("reduce-overhead", "reduce-overhead")])
def test_the_setting_names_the_mode_and_new_weights_count(
    given: bool | str, mode: str | None, modes: list[str | None]
) -> None:
    config = resolve({"selector.compile": given})
    scorer = scorer_of(net(), compiled=config.selector.compile)  # type: ignore[arg-type]
    inputs, targets = candidates(8)
    scorer.prepare(inputs, targets)
    assert modes == [mode]
    with torch.no_grad():
        scorer.model.state_dict()["features.0.weight"].mul_(2.0)
    scorer.weights_arrived()
    assert np.allclose(scorer.score(inputs, targets), exact_losses(scorer.model, inputs, targets), atol=1e-3)


@pytest.mark.parametrize("given", ["max-autotune", 1])
def test_other_ways_to_compile_are_refused(given: object) -> None:
    with pytest.raises(
        ConfigError, match=r"selector.compile = .* must be true or false or 'reduce-overhead' or 'graph'"
    ):
        resolve({"selector.compile": given})
