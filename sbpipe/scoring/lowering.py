"""From a graph of fused steps to one that computes in bytes wherever it can. Knows no kernel.

Values stay bytes from one integer layer to the next. A value that a floating-point step needs is widened
once, and one that an integer layer needs is narrowed once. The last layer stays in floating point: it costs
little and decides the ranks.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from sbpipe.scoring.fused import FusedConv, is_plain_pool, max_pool
from sbpipe.scoring.graph import module_of, result_of
from sbpipe.scoring.int8 import Dequantise, Int8Conv, Int8Linear, Quantise, Range

# A smaller layer takes too little time to gain from integers.
SMALLEST_LINEAR = 64


class Lowered(NamedTuple):
    """A graph in bytes: its quantised layers, the ranges of its values, the convolutions left in floating
    point.
    """

    graph: fx.GraphModule
    layers: list[Int8Conv | Int8Linear]
    spans: dict[str, Range]
    wide: list[str]


class BytePool(nn.Module):
    """A max pool of bytes."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self._pool = pool

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Bytes of the same range."""
        return max_pool(values, self._pool)


def lower(graph: fx.GraphModule) -> Lowered:
    """A new graph beside the fused one."""
    return _Lowering(graph).run()


class _Lowering:
    """One pass over the graph; every value exists as float, as bytes, or both."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self._old = graph
        self._modules: dict[str, Any] = dict(graph.named_modules())
        self._new = fx.Graph()
        self._wide: dict[fx.Node, fx.Node] = {}
        self._bytes: dict[fx.Node, tuple[fx.Node, Range]] = {}
        self._order = {node: k for k, node in enumerate(graph.graph.nodes)}
        self._head = _head_of(graph)
        self._spans: dict[str, Range] = {}
        self._layers: list[Int8Conv | Int8Linear] = []
        self._left: list[str] = []

    def run(self) -> Lowered:
        for node in self._old.graph.nodes:
            module = module_of(self._old, node)
            if self._is_layer(node):
                self._lower_layer(node, module)
            elif is_plain_pool(module) and node.args[0] in self._bytes and self._is_wanted_in_bytes(node):
                source, span = self._bytes[node.args[0]]
                self._bytes[node] = (self._call(f"bytes_{node.name}", BytePool(module), source), span)
            else:
                if isinstance(module, nn.modules.conv._ConvNd) and node is not self._head:
                    self._left.append(str(node.target))
                if node.op == "get_attr":
                    self._modules[str(node.target)] = _attribute(self._old, str(node.target))
                self._wide[node] = self._new.node_copy(node, self._widened)
        lowered = fx.GraphModule(self._modules, self._new)
        lowered.graph.eliminate_dead_code()
        lowered.recompile()
        return Lowered(lowered, self._layers, self._spans, self._left)

    def _is_layer(self, node: fx.Node) -> bool:
        module = module_of(self._old, node)
        if node is self._head:
            return False
        large = (
            isinstance(module, nn.Linear) and min(module.in_features, module.out_features) >= SMALLEST_LINEAR
        )
        return isinstance(module, FusedConv) or (type(module) is nn.Linear and large)

    def _is_wanted_in_bytes(self, node: fx.Node) -> bool:
        pools = (user for user in node.users if is_plain_pool(module_of(self._old, user)))
        return any(self._is_layer(user) for user in node.users) or any(
            self._is_wanted_in_bytes(pool) for pool in pools
        )

    def _lower_layer(self, node: fx.Node, module: Any) -> None:
        values, span = self._narrowed(node.args[0])
        if isinstance(module, nn.Linear):
            linear = Int8Linear(module, span)
            self._layers.append(linear)
            self._wide[node] = self._call(f"int8_{node.name}", linear, values)
            return
        inputs, other_span, owns_other = [values], None, False
        if len(node.args) > 1:
            other, other_span = self._narrowed(node.args[1])
            owns_other = self._is_last_user(node, node.args[1])
            inputs.append(other)
        # A result that only floating-point steps use is not narrowed; a sum must be, because its kernel adds
        # bytes.
        out = self._span(node) if len(inputs) > 1 or self._is_wanted_in_bytes(node) else None
        layer = Int8Conv(module, span, out, other_span, owns_other=owns_other)
        self._layers.append(layer)
        done = self._call(f"int8_{node.name}", layer, *inputs)
        if out is None:
            self._wide[node] = done
        else:
            self._bytes[node] = (done, out)

    def _is_last_user(self, node: fx.Node, value: Any) -> bool:
        """Whether this step may overwrite a value."""
        # Not if the step also reads it as its input, nor if a later step still needs it.
        return node.args[0] is not value and self._order[node] == max(
            self._order[user] for user in value.users
        )

    def _narrowed(self, node: Any) -> tuple[fx.Node, Range]:
        if node not in self._bytes:
            span = self._span(node)
            self._bytes[node] = (self._call(f"narrow_{node.name}", Quantise(span), self._wide[node]), span)
        return self._bytes[node]

    def _widened(self, node: fx.Node) -> fx.Node:
        if node not in self._wide:
            values, span = self._bytes[node]
            self._wide[node] = self._call(f"wide_{node.name}", Dequantise(span), values)
        return self._wide[node]

    def _span(self, node: fx.Node) -> Range:
        return self._spans.setdefault(result_of(node), Range())

    def _call(self, name: str, module: nn.Module, *inputs: fx.Node) -> fx.Node:
        self._modules[name] = module
        return self._new.call_module(name, inputs)


def _attribute(graph: fx.GraphModule, target: str) -> Any:
    """A tensor that the graph reads as an attribute."""
    path, _, name = target.rpartition(".")
    return getattr(graph.get_submodule(path), name)


def _head_of(graph: fx.GraphModule) -> fx.Node | None:
    """The layer that computes the output, up to steps without weights."""
    output = next(node for node in graph.graph.nodes if node.op == "output")
    node = output.args[0]
    while isinstance(node, fx.Node):
        if isinstance(module_of(graph, node), (FusedConv, nn.Linear)):
            return node
        node = node.args[0] if node.args else None
    return None


def record(graph: fx.GraphModule, spans: Mapping[str, Range], inputs: torch.Tensor) -> torch.Tensor | None:
    """Run a traced graph and update the range of each value; None, and no update, if one is not finite."""
    recorder = _Recorder(graph, set(spans))
    outputs: torch.Tensor = recorder.run(inputs)
    if not all(-math.inf < low <= high < math.inf for low, high in recorder.seen.values()):
        return None
    for name, (low, high) in recorder.seen.items():
        spans[name].see(low, high)
    return outputs


class _Recorder(fx.Interpreter):
    """Runs a graph and records the extremes of some of its values."""

    def __init__(self, graph: fx.GraphModule, wanted: set[str]) -> None:
        super().__init__(graph)
        self._wanted = wanted
        self.seen: dict[str, tuple[float, float]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """The node's value; its extremes are recorded."""
        value = super().run_node(n)
        if n.name in self._wanted:
            low, high = torch.aminmax(value)
            self.seen[n.name] = (low.item(), high.item())
        return value
