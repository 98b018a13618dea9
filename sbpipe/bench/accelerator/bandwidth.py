"""How fast bytes move: between host and device, pinned or not, on a device, and between two."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from sbpipe.bench.accelerator.check import Fact, NotHere, Size, attempt
from sbpipe.bench.accelerator.stage import first, pair, seconds


def measure(size: Size) -> Sequence[Fact]:
    """Copies of one size each way, and small ones for their latency."""
    device = first()
    facts: list[Fact] = []
    for what, make in _ways(device).items():
        facts += attempt(what, partial(_copies, what, make, size, device))
    return [*facts, *attempt("between two devices", lambda: _peers(size))]


Make = Callable[[int], tuple[Tensor, Tensor]]


def _ways(device: torch.device) -> dict[str, Make]:
    """Where bytes go, and from where."""
    return {
        "host to device, pinned": lambda count: (_there(count, device), _pinned(count)),
        "host to device, pageable": lambda count: (_there(count, device), _pageable(count)),
        "device to host, pinned": lambda count: (_pinned(count), _there(count, device)),
        "device to host, pageable": lambda count: (_pageable(count), _there(count, device)),
        "on the device": lambda count: (_there(count, device), _there(count, device)),
    }


def _copies(what: str, make: Make, size: Size, device: torch.device) -> list[Fact]:
    target, source = make(size.megabytes * 1_000_000)
    took_s = seconds(lambda: target.copy_(source, non_blocking=True), device, size.rounds)
    small, tiny = make(4096)
    latency_s = seconds(lambda: small.copy_(tiny, non_blocking=True), device, size.rounds)
    return [
        Fact(what, size.megabytes / 1000 / took_s, "GB/s"),
        Fact(f"{what}, 4 KiB", 1e6 * latency_s, "µs"),
    ]


def _peers(size: Size) -> Iterator[Fact]:
    one, other = pair()
    if one.type == "cuda":
        yield Fact("peer access", torch.cuda.can_device_access_peer(one, other))
    else:
        yield Fact("peer access", None, note=f"not here: {one.type} does not tell")
    for source, target in ((one, other), (other, one)):
        what = f"{source} to {target}"

        def make(
            count: int, source: torch.device = source, target: torch.device = target
        ) -> tuple[Tensor, Tensor]:
            return _there(count, target), _there(count, source)

        yield from _copies(what, make, size, target)


def _there(count: int, device: torch.device) -> Tensor:
    return torch.zeros(count, dtype=torch.uint8, device=device)


def _pageable(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.uint8)


def _pinned(count: int) -> Tensor:
    tensor = torch.zeros(count, dtype=torch.uint8).pin_memory()
    if not tensor.is_pinned():
        raise NotHere("memory cannot be pinned")
    return tensor
