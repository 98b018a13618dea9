"""A forward pass recorded once as a device graph, and replayed: no launch per kernel. Knows no loss.

A graph reads weights at the addresses of the recording. It stays valid because new weights are written in
place, and what is folded, cast or rounded from them is derived in place too.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sbpipe.errors import DeviceError

log = logging.getLogger("sbpipe.scoring")

GRAPH, LOW_OVERHEAD = "graph", "reduce-overhead"
"""The values of `selector.compile` other than true and false."""
_WARM_UPS = 3
"""Passes before a recording: in the first ones libraries choose kernels and allocate memory."""

Run: TypeAlias = Callable[[Tensor], Tensor]
Capture: TypeAlias = Callable[[Run, Tensor], tuple[Tensor, Callable[[], Any]]]
"""Records a pass over exactly these inputs; returns its outputs, and what computes them again."""


def check_way(compiled: bool | str, device: torch.device, *, is_own: bool) -> None:
    """Refuse a way of compiling that does not exist here; warn about one that gains nothing."""
    if compiled == GRAPH and (is_own or device.type == "cpu"):
        reason = "batches of your own make change their shapes" if is_own else "a CPU records no graphs"
        instead = repr(LOW_OVERHEAD) if is_own else "true, which compiles,"
        raise DeviceError(f"selector.compile = '{GRAPH}': {reason}. Write {instead} or false")
    if compiled == LOW_OVERHEAD and device.type != "cuda":
        log.warning(
            "selector.compile = '%s': graphs are recorded on CUDA only: compiled as with true", LOW_OVERHEAD
        )


def named(compiled: bool | str) -> str:
    """The value of the setting as the user wrote it."""
    return repr(compiled) if isinstance(compiled, str) else str(compiled).lower()


def fast(run: torch.nn.Module, compiled: bool | str) -> Run:
    """A callable for the module, as `selector.compile` asks for."""
    if compiled == GRAPH:
        return Captured(run)
    if not compiled:
        return run
    done: Run = torch.compile(run, dynamic=False, mode=compiled if isinstance(compiled, str) else None)
    # Its result lies in the graph's own memory, which the next pass overwrites.
    return (lambda inputs: done(inputs).clone()) if compiled == LOW_OVERHEAD else done


class Captured:
    """A pass that is recorded for the first inputs of a shape, and replayed for others of that shape."""

    def __init__(self, run: Run, capture: "Capture | None" = None) -> None:
        self._run, self._capture = run, capture or on_device
        self._inputs, self._outputs = torch.empty(0), torch.empty(0)
        self._replay: Callable[[], Any] = lambda: None

    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs, copied out of the graph's memory."""
        if _kind(inputs) != _kind(self._inputs):
            self._inputs = inputs.clone()
            self._outputs, self._replay = self._capture(self._run, self._inputs)
        self._inputs.copy_(inputs)
        self._replay()
        return self._outputs.clone()


def on_device(run: Run, inputs: Tensor) -> tuple[Tensor, Callable[[], Any]]:
    """Record a pass as a graph of the inputs' device."""
    # Not recorded on the default stream: other threads of this process may synchronise with it.
    stream = torch.Stream(inputs.device)
    stream.wait_stream(torch.accelerator.current_stream(inputs.device))
    with stream:
        for _ in range(_WARM_UPS):
            run(inputs)
    torch.accelerator.synchronize(inputs.device)
    graph = _new_graph(inputs.device)
    with stream, graph:
        outputs = run(inputs)
    torch.accelerator.synchronize(inputs.device)
    return outputs, graph.replay


def _new_graph(device: torch.device) -> Any:
    # Thread-local: in mode inline a train step runs in another thread of this process at the same time.
    kind: Any = getattr(torch.accelerator, "Graph", None)
    if kind is not None:
        return kind(capture_error_mode="thread_local")
    return _CudaGraph()


class _CudaGraph:
    """The same for versions of torch that have graphs for CUDA only."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def __enter__(self) -> None:
        self._graph.capture_begin(capture_error_mode="thread_local")

    def __exit__(self, *_: object) -> None:
        self._graph.capture_end()

    def replay(self) -> None:
        self._graph.replay()


def _kind(inputs: Tensor) -> tuple[Any, ...]:
    return inputs.shape, inputs.stride(), inputs.dtype, inputs.device
