"""The bytes that a model would take, without making it: for models that another user has chosen.

It must not know who chose the model, nor how much memory there is.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_MAKERS = (torch.empty, torch.zeros, torch.ones)
"""The functions that layers make their parameters and buffers with."""


def bytes_made(build: Callable[[], object]) -> int:
    """The bytes of all tensors that `build` makes; none of them gets memory."""
    weighing = _Weighing()
    with weighing:
        build()
    return weighing.num_bytes


class _Weighing(TorchFunctionMode):
    """Inside this context new tensors have a shape but no memory, and nothing is written to them."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called in place of every function of torch."""
        kwargs = kwargs or {}
        if func in _MAKERS:
            made = torch.empty(torch.Size(_shape(args, kwargs)), dtype=kwargs.get("dtype"), device="meta")
            self.num_bytes += made.numel() * made.element_size()
            return made
        # In-place functions are skipped: random ones on tensors without memory would load torch's compiler.
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.endswith("__"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _shape(args: Any, kwargs: dict[str, Any]) -> Any:
    """The shape, from either form of these functions' arguments: numbers, or one sequence of numbers."""
    first = args[0] if args else kwargs["size"]
    return args if isinstance(first, int) else first
