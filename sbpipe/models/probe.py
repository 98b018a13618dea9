"""Tries a new model on a batch of zeros, so that a wrong shape fails before anything is started."""

import torch
from torch import nn

from sbpipe.errors import ModelError


def probe(
    model: nn.Module, name: str, input_shape: tuple[int, ...], dtype: torch.dtype, *, num_outputs: int | None
) -> None:
    """Raise ModelError unless two zero inputs give outputs, of shape [2, num_outputs] if that is given.

    It runs in evaluation mode, so that no buffer changes. Each module's mode is restored, since a user may
    have frozen some.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            outputs = model(torch.zeros(2, *input_shape, dtype=dtype))
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        way_out = (
            "Choose a model made for this shape (the *_cifar models take small images of any number of "
            "channels)"
        )
        raise ModelError(
            f"model.name = {name!r}: cannot take inputs of shape {list(input_shape)} ({_first_line(error)}). "
            f"{way_out}"
        ) from error
    finally:
        for module, was_training in modes:
            module.training = was_training
    if num_outputs is None:
        return
    got = list(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if got != [2, num_outputs]:
        raise ModelError(
            f"model.name = {name!r}: two inputs gave {got}, not [2, {num_outputs}] as {num_outputs} classes "
            "ask for. Give its last layer that many outputs"
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
