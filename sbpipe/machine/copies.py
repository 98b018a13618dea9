"""Copies between the host and a device, many tensors in one copy, without any thread waiting.

They go through page-locked buffers; a buffer is reused only when the device has finished with it. On the CPU
nothing is copied; on a device without streams copies block. It must not know what is copied.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

# Bytes viewed as numbers must begin at a multiple of their size.
_ALIGNMENT = 64
_SMALLEST = 4096
_MOST_FREE = 8
_PIECE_BYTES = 1 << 26
"""A deep copy goes in pieces of this size: meanwhile a piece takes as much device and page-locked memory."""


@lru_cache(maxsize=16)
def overlaps(device: torch.device) -> bool:
    """Whether copies to and from a device can run beside the host: it has streams, events, pinned memory."""
    if device.type == "cpu":
        return False
    try:
        pinned = torch.empty(1, dtype=torch.uint8, pin_memory=True)
        torch.Stream(device)
        torch.accelerator.current_stream(device).record_event().query()
    # A backend without them raises one of these.
    except (RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError):
        return False
    # Where host and device share one memory, a pinned tensor may be one of the device.
    return pinned.device.type == "cpu"


class Pinned:
    """Page-locked buffers; a buffer that a copy still uses is not handed out again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Tensor] = []
        self._busy: deque[tuple[Tensor, torch.Event]] = deque()

    def take(self, num_bytes: int) -> Tensor:
        """A buffer of at least `num_bytes`; a new one if all old ones are busy."""
        with self._lock:
            while self._busy and self._busy[0][1].query():
                self._free.append(self._busy.popleft()[0])
            fit = next((k for k, buffer in enumerate(self._free) if buffer.numel() >= num_bytes), None)
            if fit is not None:
                return self._free.pop(fit)
            # Free buffers are too small now, and would seldom be used again.
            self._free = self._free[:_MOST_FREE]
        size = max(_SMALLEST, 1 << (num_bytes - 1).bit_length() if num_bytes else 0)
        # The first caller may be in inference mode, whose tensors cannot be written to outside of it.
        with torch.inference_mode(False):
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def give(self, buffer: Tensor, done: torch.Event) -> None:
        """Take a buffer back; it may be reused after this event."""
        with self._lock:
            self._busy.append((buffer, done))


class Uploads:
    """Copies from the host to one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned = Pinned() if overlaps(device) else None

    def together(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy all tensors at once; on the device they share one block of memory."""
        if self._pinned is None:
            return self._plainly(tensors)
        here = [tensor for tensor in tensors if _is_plain(tensor)]
        buffer, views, end = self._packed(self._pinned, here)
        flat = buffer[:end].to(self.device, non_blocking=True)
        arrived = iter([_like(view, flat[view.storage_offset() * view.element_size() :]) for view in views])
        self._sent(self._pinned, buffer)
        return [next(arrived) if _is_plain(tensor) else tensor.to(self.device) for tensor in tensors]

    def apart(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy each tensor to its own memory on the device, so that keeping one does not keep the others."""
        if self._pinned is None:
            return self._plainly(tensors)
        here = [tensor for tensor in tensors if _is_plain(tensor)]
        buffer, views, _ = self._packed(self._pinned, here)
        arrived = iter([view.to(self.device, non_blocking=True) for view in views])
        self._sent(self._pinned, buffer)
        return [next(arrived) if _is_plain(tensor) else tensor.to(self.device) for tensor in tensors]

    def _plainly(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        is_here = self.device.type == "cpu"
        return list(tensors) if is_here else [tensor.to(self.device) for tensor in tensors]

    @staticmethod
    def _packed(pinned: Pinned, tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor], int]:
        """A buffer filled with the tensors, the views of them in it, and where the last one ends."""
        places, end = [], 0
        for tensor in tensors:
            places.append(end)
            end += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
        buffer = pinned.take(end)
        views = [
            _like(tensor, buffer[place:]).copy_(tensor) for tensor, place in zip(tensors, places, strict=True)
        ]
        return buffer, views, end

    def _sent(self, pinned: Pinned, buffer: Tensor) -> None:
        pinned.give(buffer, torch.accelerator.current_stream(self.device).record_event())


@lru_cache(maxsize=16)
def uploads_to(device: torch.device) -> Uploads:
    """The shared uploads to a device."""
    return Uploads(device)


@lru_cache(maxsize=16)
def downloads_from(device: torch.device) -> "Downloads":
    """The shared downloads from a device."""
    return Downloads(device)


class Downloads:
    """Copies from one device to the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned = Pinned() if overlaps(device) else None

    def __call__(self, tensors: Sequence[Tensor]) -> "Arrival":
        """Start to copy all tensors at once; those on the host already stay there."""
        if self._pinned is None:
            return Arrival([tensor.detach() for tensor in tensors])
        far = [tensor.detach() for tensor in tensors if tensor.device.type != "cpu"]
        flat = torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in far]) if far else None
        if flat is None:
            return Arrival(list(tensors))
        buffer = self._pinned.take(flat.numel())
        buffer[: flat.numel()].copy_(flat, non_blocking=True)
        done = torch.accelerator.current_stream(self._device).record_event()
        return _Flying([tensor.detach() for tensor in tensors], self._pinned, buffer, done)


class Arrival:
    """Tensors on their way to the host. Waiting for them does not wait for work that was queued later."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    @property
    def is_here(self) -> bool:
        """Whether `wait` returns at once."""
        return True

    def wait(self) -> list[Tensor]:
        """The tensors, on the CPU."""
        return [tensor.cpu() for tensor in self._tensors]


class _Flying(Arrival):
    """Tensors whose bytes go through one buffer."""

    def __init__(self, tensors: list[Tensor], pinned: Pinned, buffer: Tensor, done: torch.Event) -> None:
        # Only shape and type of the device's tensors are kept, so that their memory can be freed.
        super().__init__(
            [t if t.device.type == "cpu" else torch.empty_like(t, device="meta") for t in tensors]
        )
        self._pinned, self._buffer, self._done = pinned, buffer, done
        self._has_come = self._is_unpacked = False

    @property
    def is_here(self) -> bool:
        self._has_come = self._has_come or bool(self._done.query())
        return self._has_come

    def wait(self) -> list[Tensor]:
        if not self._is_unpacked:
            # It does not query first: whether the host waits must not depend on the device's speed.
            if not self._has_come:
                self._done.synchronize()
            self._tensors, self._is_unpacked = list(self._unpacked()), True
            self._pinned.give(self._buffer, self._done)
        return self._tensors

    def _unpacked(self) -> Sequence[Tensor]:
        found, begin = [], 0
        for form in self._tensors:
            if form.device.type == "cpu":
                found.append(form)
                continue
            end = begin + form.numel() * form.element_size()
            # A copy: the buffer is reused, and parts of it may be misaligned for their types.
            found.append(self._buffer[begin:end].clone().view(form.dtype).view(form.shape))
            begin = end
        return found

    def __del__(self) -> None:
        if not self._is_unpacked:
            self._pinned.give(self._buffer, self._done)


def on_host(value: Any) -> Any:
    """A deep copy of dicts and lists with tensors on the CPU. Tensors on a device come in copies of up to
    `_PIECE_BYTES`, and the host waits once for each copy.
    """
    found: dict[int, Tensor] = {}
    piece, num_bytes = list[Tensor](), 0
    for tensor in _tensors_in(value):
        if tensor.device.type == "cpu" or not _is_dense(tensor) or id(tensor) in found:
            continue
        found[id(tensor)] = tensor
        if piece and (num_bytes + tensor.nbytes > _PIECE_BYTES or piece[0].device != tensor.device):
            found |= _brought(piece)
            piece, num_bytes = [], 0
        piece.append(tensor)
        num_bytes += tensor.nbytes
    found |= _brought(piece)
    return _copied(value, found)


def _brought(tensors: list[Tensor]) -> dict[int, Tensor]:
    """Copies of tensors of one device, by their `id`."""
    arrived = downloads_from(tensors[0].device)(tensors).wait() if tensors else []
    pairs = zip(tensors, arrived, strict=True)
    return {id(tensor): _laid_like(tensor, here) for tensor, here in pairs}


def _copied(value: Any, found: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return found[id(value)] if id(value) in found else value.detach().cpu().clone()
    if isinstance(value, dict):
        return {name: _copied(inner, found) for name, inner in value.items()}
    return [_copied(inner, found) for inner in value] if isinstance(value, list) else value


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(inner)


def _laid_like(tensor: Tensor, here: Tensor) -> Tensor:
    """The contiguous copy in the tensor's memory format, which an optimizer needs for its state."""
    return here if tensor.is_contiguous() else torch.empty_like(tensor, device="cpu").copy_(here)


def _is_dense(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, Parameter) and tensor.layout == torch.strided and not tensor.is_quantized


def _is_plain(tensor: Tensor) -> bool:
    """Whether it can be packed: a dense tensor on the host, and no subclass."""
    return (
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.is_quantized
    )


def _like(tensor: Tensor, flat: Tensor) -> Tensor:
    """The first bytes as a tensor of this shape and type; channels-last images stay channels-last."""
    view = flat[: tensor.numel() * tensor.element_size()].view(tensor.dtype)
    is_channels_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    if is_channels_last and not tensor.is_contiguous():
        return view.as_strided(tensor.shape, tensor.stride(), view.storage_offset())
    return view.view(tensor.shape)
