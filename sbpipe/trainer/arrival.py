"""A tensor on its way from the device to the CPU. Knows nothing of what is in it."""

import torch


class Arrival:
    """Waiting for it waits for nothing that was queued later; on the CPU it is there at once."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._event: torch.Event | None = None
        self._tensor = tensor
        if tensor.device.type != "cpu":
            self._tensor = torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(
                tensor, non_blocking=True
            )
            self._event = torch.accelerator.current_stream(tensor.device).record_event()

    def wait(self) -> torch.Tensor:
        """The tensor, on the CPU."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor
