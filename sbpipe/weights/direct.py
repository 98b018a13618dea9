"""Slots on the trainer's device, from which a selector on another device of the host reads without the host.

Never run on hardware: no GPU was available. Tests share files and simulated devices instead of CUDA memory.

Sequences and versions stay in shared memory, as in `slots.py`. Of each slot only a handle lies there, plain
fields as JSON, by which another process opens the slot's memory. It knows no snapshot and no version.
"""

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

import torch

from sbpipe.errors import ConfigError
from sbpipe.weights.slots import Slots

HANDLE_BYTES = 4096
"""The size of a slot in shared memory: room for a handle as text."""
_MOST_FIELD = 512
# torch's name for the shared reference counter of a memory block. It is opened by name, so no other name may
# pass.
_COUNTER = re.compile(r"/torch_[0-9]+_[0-9]+_[0-9]+", re.ASCII)


class BadHandle(ValueError):
    """A handle cannot be opened here; says why."""


@dataclass(frozen=True)
class Handle:
    """A reference to device memory: torch's description in plain fields. Bytes are written as hex."""

    device: str
    """The device's UUID: processes may number devices differently."""
    memory: str
    num_bytes: int
    offset: int = 0
    counter: str = ""
    counter_offset: int = 0
    event: str = ""
    must_wait: bool = False

    def text(self) -> bytes:
        """As it lies in shared memory, ended by a zero."""
        text = json.dumps(asdict(self)).encode() + b"\0"
        if len(text) > HANDLE_BYTES:
            raise BadHandle(f"a handle of {len(text)} bytes is longer than {HANDLE_BYTES}")
        # A handle that no selector would take is refused now, when the run begins.
        self.read(text)
        return text

    @classmethod
    def read(cls, text: bytes) -> "Handle":
        """Parse a handle of another process: exactly these fields, each of its type and within limits."""
        try:
            found = json.loads(text.partition(b"\0")[0])
        except (ValueError, RecursionError):
            raise BadHandle("what lies in shared memory is no handle") from None
        if type(found) is not dict or found.keys() != {field.name for field in fields(cls)}:
            raise BadHandle("a handle has other fields")
        for field in fields(cls):
            if not _is_legal(field.type, found[field.name]):
                raise BadHandle(f"{field.name} of a handle is out of bounds")
        return cls(**found)


def _is_legal(kind: Any, value: Any) -> bool:
    if type(value) is not kind:
        return False
    if kind is str:
        return len(value) <= _MOST_FIELD
    return kind is bool or 0 <= value < 1 << 48


class Sharing(Protocol):
    """How device memory of one process is opened by another."""

    def new(self, num_bytes: int, device: torch.device) -> tuple[torch.Tensor, Handle]:
        """Flat bytes on a device, and the handle that opens them in another process."""
        ...

    def open(self, handle: Handle, device: torch.device) -> torch.Tensor:
        """The same bytes, to be copied to `device`; BadHandle or RuntimeError where that cannot be."""
        ...


class CudaSharing:
    """CUDA's inter-process handles, as torch's own multiprocessing uses them. Never run on hardware."""

    def new(self, num_bytes: int, device: torch.device) -> tuple[torch.Tensor, Handle]:
        """Flat bytes on a device, and the handle that opens them elsewhere."""
        flat = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        storage: Any = flat.untyped_storage()
        _, memory, size, offset, counter, counter_offset, event, must_wait = storage._share_cuda_()
        return flat, Handle(
            device=_uuid(flat.device.index),
            memory=memory.hex(),
            num_bytes=int(size),
            offset=int(offset),
            counter=counter.hex(),
            counter_offset=int(counter_offset),
            event=event.hex(),
            must_wait=bool(must_wait),
        )

    def open(self, handle: Handle, device: torch.device) -> torch.Tensor:
        """The same bytes, opened on the device where they lie."""
        memory, counter, event = (_from_hex(text) for text in (handle.memory, handle.counter, handle.event))
        if not _COUNTER.fullmatch(counter.decode("ascii", "replace")):
            raise BadHandle("the counter of a handle is not torch's")
        index = next((k for k in range(torch.cuda.device_count()) if _uuid(k) == handle.device), None)
        if index is None:
            raise BadHandle("this process does not see the trainer's device (CUDA_VISIBLE_DEVICES?)")
        own = torch.cuda.current_device() if device.index is None else device.index
        if own != index and not torch.cuda.can_device_access_peer(own, index):
            raise BadHandle(f"cuda:{own} has no peer access to cuda:{index}")
        shared: Any = torch.UntypedStorage
        storage = shared._new_shared_cuda(
            index,
            memory,
            handle.num_bytes,
            handle.offset,
            counter,
            handle.counter_offset,
            event,
            handle.must_wait,
        )
        return torch.empty(0, dtype=torch.uint8, device=f"cuda:{index}").set_(storage)


def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise BadHandle("a handle is not written in hex") from None


def create(
    num_bytes: int,
    device: torch.device,
    *,
    name: str,
    num_slots: int = 3,
    fast_bytes: int = 0,
    sharing: Sharing | None = None,
) -> Slots:
    """The trainer's side: slots on its device; their header and handles are in shared memory under `name`."""
    sharing = sharing or sharing_of(device, "train.device")
    try:
        slots = Slots.create(
            HANDLE_BYTES, num_slots=num_slots, name=name, fast_bytes=HANDLE_BYTES if fast_bytes else 0
        )
    except OSError as error:
        raise _refusal(f"marks and handles lie in shared memory, and there is none ({error})") from None
    try:
        _fill(slots, num_bytes, device, sharing)
        if slots.fast is not None:
            _fill(slots.fast, fast_bytes, device, sharing)
    except (BadHandle, RuntimeError) as error:
        slots.close()
        raise _refusal(f"{num_slots} snapshots on '{device}' cannot be shared ({_line(error)})") from None
    return slots


def attach(name: str, device: torch.device, *, sharing: Sharing | None = None) -> Slots:
    """A selector's side: the trainer's slots, opened once, to be copied to `device`."""
    sharing = sharing or sharing_of(device, "selector.device")
    try:
        slots = Slots.attach(name)
        for each in (slots, slots.fast):
            if each is not None:
                _open(each, device, sharing)
    except (OSError, ValueError, RuntimeError) as error:
        raise _refusal(f"'{device}' cannot read the trainer's device ({_line(error)})") from None
    return slots


def _fill(slots: Slots, num_bytes: int, device: torch.device, sharing: Sharing) -> None:
    memory = []
    for index in range(slots.num_slots):
        flat, handle = sharing.new(num_bytes, device)
        text = handle.text()
        slots.slot(index)[: len(text)].copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        memory.append(flat)
    slots.lie_in(memory)


def _open(slots: Slots, device: torch.device, sharing: Sharing) -> None:
    handles = [Handle.read(slots.slot(k).numpy().tobytes()) for k in range(slots.num_slots)]
    memory = [sharing.open(handle, device) for handle in handles]
    for flat, handle in zip(memory, handles, strict=True):
        if flat.numel() != handle.num_bytes or handle.num_bytes != handles[0].num_bytes:
            raise BadHandle("the memory of a handle has another size")
    slots.lie_in(memory)


def sharing_of(device: torch.device, key: str) -> Sharing:
    """How this device's memory is shared between processes; raises where it cannot be."""
    if device.type != "cuda":
        raise _refusal(f"it is for CUDA devices, and {key} is '{device}'")
    return CudaSharing()


def _refusal(reason: str) -> ConfigError:
    return ConfigError(
        "sync.direct", True, reason, "Set sync.direct = false: weights then go through the host"
    )


def _line(error: Exception) -> str:
    """The first line of torch's message, without CUDA's advice on debugging."""
    return str(error).partition("\n")[0]
