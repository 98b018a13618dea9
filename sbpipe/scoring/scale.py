"""The size at which images are scored (`selector.scale`), and whether a model takes images of it."""

from collections.abc import Callable

from torch import Tensor, nn

from sbpipe.errors import ModelError


class Scale:
    """A share of the height and width of images; 1.0 = as they are."""

    def __init__(self, share: float) -> None:
        self._share = share

    @property
    def is_full(self) -> bool:
        """Whether images stay as they are."""
        return self._share == 1.0

    def __call__(self, inputs: Tensor) -> Tensor:
        """Images at this size, each pixel the mean of those that it covers."""
        if self.is_full or inputs.ndim != 4:
            return inputs
        size = [max(1, round(side * self._share)) for side in inputs.shape[2:]]
        return nn.functional.interpolate(inputs, size=size, mode="area")

    def refuse(self, inputs: Tensor, call: Callable[[Tensor], object]) -> None:
        """Raise ModelError if these are not images, or the model does not take smaller ones."""
        if self.is_full:
            return
        if inputs.ndim != 4:
            shape = list(inputs.shape[1:])
            raise ModelError(
                f"selector.scale = {self._share:g}: only images can be scored smaller, these are inputs of "
                f"{shape}. Write 1.0"
            )
        small = self(inputs)
        try:
            call(small)
        except RuntimeError as error:
            size = "x".join(str(side) for side in small.shape[2:])
            reason = f"the model does not take images of {size} ({error})"
            raise ModelError(
                f"selector.scale = {self._share:g}: {reason}. Write a larger scale, or 1.0"
            ) from error
