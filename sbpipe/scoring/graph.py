"""A model's forward pass as a graph in which a convolution and the steps after it are one step.

In evaluation mode much of a network is redundant: a BatchNorm is a scale and a shift per channel, dropout
does nothing, and a ReLU or a residual sum can be computed while a convolution's result is still in registers.
`fused` finds such chains and replaces each by one `FusedConv`:

    conv [-> max pool] -> batch norm [-> + other] [-> ReLU]

A model whose forward pass cannot be traced has no graph; it is scored unchanged.
"""

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from sbpipe.scoring.fused import FusedConv, is_plain_pool

Node = fx.Node

_RELUS: dict[Any, float] = {
    F.relu: torch.inf,
    torch.relu: torch.inf,
    "relu": torch.inf,
    "relu_": torch.inf,
    F.relu6: 6.0,
}
_RELU_MODULES: dict[type, float] = {nn.ReLU: torch.inf, nn.ReLU6: 6.0}
_ADDS = (operator.add, operator.iadd, torch.add, "add", "add_")
_NOTHING_IN_EVALUATION = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def traced(model: nn.Module) -> fx.GraphModule | None:
    """The graph of a model in evaluation mode, sharing its modules; None if it cannot be traced."""
    try:
        graph = fx.symbolic_trace(model)
    except Exception:  # noqa: BLE001 - given tracing proxies, a user's forward pass may raise any error
        return None
    is_plain = [node.op for node in graph.graph.nodes].count("placeholder") == 1
    return graph.eval() if is_plain else None


def fused(
    graph: fx.GraphModule, model: nn.Module, dtype: torch.dtype, *, keeps_sign: bool = False
) -> list[FusedConv]:
    """Rewrite a graph with fused convolutions in `dtype`, which read the modules of `model`; returns them.

    The graph may be of a copy of the model. A fused step remembers the name of its last value.
    """
    made = []
    for node in list(graph.graph.nodes):
        if _takes_one_value(node) and _does_nothing(module_of(graph, node)):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    for node in list(graph.graph.nodes):
        if _takes_one_value(node) and _can_fuse(module_of(graph, node)):
            made.append(_fuse(graph, node, model, dtype, keeps_sign=keeps_sign))
    graph.graph.eliminate_dead_code()
    graph.delete_all_unused_submodules()
    graph.recompile()
    return made


def result_of(node: Node) -> str:
    """The name, in the traced graph, of the last value of a step."""
    name: str = node.meta.get("result", node.name)
    return name


def _fuse(
    graph: fx.GraphModule, node: Node, model: nn.Module, dtype: torch.dtype, *, keeps_sign: bool
) -> FusedConv:
    last: Node = node
    pool = norm = other = None
    user = _only_user(node)
    if is_plain_pool(module_of(graph, user)) and _can_fold(module_of(graph, _only_user(user))):
        pool, user = module_of(graph, user), _only_user(user)
    if user is not None and _can_fold(module_of(graph, user)):
        last, norm = user, module_of(model, user)
        user = _only_user(last)
    # A sum after a pool does not belong to the convolution: no kernel does both.
    if pool is None and user is not None and _is_sum(user):
        other = next(value for value in user.args if value is not last)
        last, user = user, _only_user(user)
    cap = _relu_cap(graph, user)
    last = user if user is not None and cap is not None else last
    step = FusedConv(
        module_of(model, node), norm=norm, pool=pool, cap=cap, dtype=dtype, keeps_sign=keeps_sign
    )
    name = f"fused_{node.name}"
    graph.add_submodule(name, step)
    with graph.graph.inserting_after(last):
        new = graph.graph.call_module(name, (node.args[0],) if other is None else (node.args[0], other))
    new.meta["result"] = last.name
    last.replace_all_uses_with(new)
    return step


def module_of(holder: nn.Module, node: Node | None) -> Any:
    """The module that a step calls, in the graph or in the model; None if it calls something else."""
    return holder.get_submodule(str(node.target)) if node is not None and node.op == "call_module" else None


def _only_user(node: Node | None) -> Node | None:
    """The step that uses a value, if there is exactly one and it uses the value once."""
    if node is None or len(node.users) != 1:
        return None
    user = next(iter(node.users))
    # x + x has one user that uses x twice; nothing can be folded into one of its operands.
    uses = [*user.args, *user.kwargs.values()].count(node)
    return user if uses == 1 and user.op != "output" else None


def _takes_one_value(node: Node) -> bool:
    return len(node.args) == 1 and isinstance(node.args[0], Node) and not node.kwargs


def _does_nothing(module: Any) -> bool:
    return isinstance(module, _NOTHING_IN_EVALUATION) and not _has_hooks(module)


def _can_fuse(module: Any) -> bool:
    # Exactly this class: a subclass may compute anything. Hooks would no longer be called after fusing.
    plain = (
        type(module) is nn.Conv2d and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    )
    return plain and not _has_hooks(module)


def _can_fold(module: Any) -> bool:
    plain = type(module) is nn.BatchNorm2d and module.running_mean is not None
    return plain and not _has_hooks(module)


def _has_hooks(module: Any) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _is_sum(node: Node) -> bool:
    is_add = node.op in ("call_function", "call_method") and node.target in _ADDS
    return (
        is_add
        and not node.kwargs
        and len(node.args) == 2
        and all(isinstance(value, Node) for value in node.args)
    )


def _relu_cap(graph: fx.GraphModule, node: Node | None) -> float | None:
    """The value at which a ReLU saturates; None if the step is not a ReLU."""
    if node is None:
        return None
    if node.op == "call_module":
        module = module_of(graph, node)
        return None if _has_hooks(module) else _RELU_MODULES.get(type(module))
    return _RELUS.get(node.target) if node.op in ("call_function", "call_method") else None
