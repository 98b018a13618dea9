"""The flat layout of a snapshot, and the copy between a model and flat bytes. Knows no memory or wire."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace

import torch
from torch import nn

from sbpipe.machine.grouped import copy_grouped
from sbpipe.machine.layout import DTYPES
from sbpipe.records import Manifest, Part, TensorSpec

FAST_PARTS = ("norm", "bias", "head")
# Bytes viewed as numbers must begin at a multiple of their size; 64 is also a cache line.
_ALIGNMENT = 64


def build_manifest(
    model: nn.Module, parts: Mapping[str, str], dtype: str = "fp32", *, is_channels_last: bool = False
) -> Manifest:
    """Lay out every parameter and persistent buffer, the fast part first; one with several names once.

    Only parameters take the wire's `dtype`. Buffers keep theirs: running variances overflow in fp16.
    Convolution kernels are channels-last if the trainer's own are, so that it never has to permute them.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    state, ties = model.state_dict(), ties_of(model)
    names: dict[str, list[str]] = {}
    for name in state:
        names.setdefault(ties.get(name, name), []).append(name)
    # A tensor with several names is fast if one of its names is.
    part_of = {
        first: next((parts[name] for name in same if parts[name] in FAST_PARTS), parts[same[0]])
        for first, same in names.items()
    }
    specs: list[TensorSpec] = []
    offset = fast_bytes = 0
    # The sort is stable, so the order is otherwise that of the state dict, which both roles build alike.
    for first in sorted(names, key=lambda first: part_of[first] not in FAST_PARTS):
        name, *also = names[first]
        tensor, part = state[name], part_of[first]
        wire = DTYPES[dtype] if name in parameters and tensor.is_floating_point() else tensor.dtype
        num_bytes = tensor.numel() * wire.itemsize
        kind, shape = str(wire).removeprefix("torch."), tuple(tensor.shape)
        is_turned = is_channels_last and len(shape) == 4
        specs.append(TensorSpec(name, kind, shape, offset, num_bytes, part, tuple(also), is_turned))
        offset += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        fast_bytes = offset if part in FAST_PARTS else fast_bytes
    text = json.dumps([asdict(spec) for spec in specs])
    return Manifest(tuple(specs), offset, fast_bytes, hashlib.sha256(text.encode()).hexdigest()[:16])


def lies_channels_last(model: nn.Module) -> bool:
    """Whether the model is on an accelerator and its convolution kernels are channels-last.

    There a grouped copy between equal layouts is one kernel. On the CPU a snapshot stays row by row, as do
    most models that read it.
    """
    return any(
        tensor.dim() == 4
        and tensor.device.type != "cpu"
        and tensor.is_contiguous(memory_format=torch.channels_last)
        and not tensor.is_contiguous()
        for tensor in model.state_dict().values()
    )


def row_by_row(manifest: Manifest) -> Manifest:
    """The same layout with every tensor row by row, as in checkpoints, which may be resumed on any device."""
    return replace(
        manifest, tensors=tuple(replace(spec, is_channels_last=False) for spec in manifest.tensors)
    )


def relaid(flat: torch.Tensor, layout: Manifest, into: Manifest) -> torch.Tensor:
    """Flat bytes of one layout in the order of another; the same tensor where they do not differ."""
    if layout.tensors == into.tensors:
        return flat
    other = torch.zeros_like(flat)
    copy(tensors_in(other, into), tensors_in(flat, layout))
    return other


def ties_of(model: nn.Module) -> dict[str, str]:
    """Maps the other names of a parameter to its first.

    A function of the module alone, so that all ranks and both roles agree. Buffers have no ties: a device has
    one for each name.
    """
    first: dict[int, str] = {}
    return {
        name: first[id(held)]
        for name, held in model.named_parameters(remove_duplicate=False)
        if first.setdefault(id(held), name) != name
    }


def fast_part(manifest: Manifest) -> Manifest | None:
    """The layout of the fast parts alone: the front of the whole. None if there are none, or nothing else."""
    if not 0 < manifest.fast_bytes < manifest.num_bytes:
        return None
    tensors = tuple(spec for spec in manifest.tensors if spec.part in FAST_PARTS)
    # The digest of the whole, which both roles have already compared.
    return Manifest(tensors, manifest.fast_bytes, manifest.fast_bytes, manifest.digest)


def layouts_of(manifest: Manifest) -> dict[Part, Manifest]:
    """The layout of each part that can have snapshots of its own."""
    fast = fast_part(manifest)
    return {Part.WHOLE: manifest} | ({} if fast is None else {Part.FAST: fast})


def tensors_in(flat: torch.Tensor, manifest: Manifest) -> list[torch.Tensor]:
    """Views into flat bytes, one per tensor of the layout."""
    views = []
    for spec in manifest.tensors:
        raw = flat[spec.offset : spec.offset + spec.num_bytes].view(getattr(torch, spec.dtype))
        if spec.is_channels_last:
            count, channels, height, width = spec.shape
            views.append(raw.view(count, height, width, channels).permute(0, 3, 1, 2))
        else:
            views.append(raw.view(spec.shape))
    return views


def tensors_of(model: nn.Module, manifest: Manifest) -> list[torch.Tensor]:
    """The model's live tensors in the order of the layout, each under its first name."""
    state = model.state_dict()
    return [state[spec.name] for spec in manifest.tensors]


def apart_in(model: nn.Module, manifest: Manifest) -> list[tuple[int, torch.Tensor]]:
    """Tensors that are tied to another in the layout, but separate in this model, with their places."""
    state = model.state_dict()
    return [
        (place, state[name])
        for place, spec in enumerate(manifest.tensors)
        for name in spec.also
        if state[name].data_ptr() != state[spec.name].data_ptr()
    ]


class LiveTensors:
    """The model's live tensors, looked up at each read because a module may rebind its buffers.

    The modules that hold them are found once: a state dict has the same tensors but is slow to build. If its
    names differ from those of the modules (a hook renames them), it is built each time.
    """

    def __init__(self, model: nn.Module, manifest: Manifest) -> None:
        self._model, self._manifest = model, manifest
        holders = {
            f"{path}.{name}" if path else name: (held, name)
            for path, module in model.named_modules(remove_duplicate=False)
            for held in (module._parameters, module._buffers)
            for name in held
        }
        self._places = [holders[spec.name] for spec in manifest.tensors if spec.name in holders]
        if [tensor.data_ptr() for tensor in self.read()] != [
            tensor.data_ptr() for tensor in tensors_of(model, manifest)
        ]:
            self._places = []

    def read(self) -> list[torch.Tensor]:
        """The present tensors, in the order of the layout."""
        return [held[name] for held, name in self._places] or tensors_of(self._model, self._manifest)


def copy(into: list[torch.Tensor], source: list[torch.Tensor]) -> None:
    """Copy tensor by tensor, casting where types differ, in as few kernels as the device allows."""
    copy_grouped(into, source)


def digest(model: nn.Module) -> str:
    """A fingerprint of all parameters and buffers, bit for bit."""
    return digest_of(model.state_dict())


def digest_of(state: Mapping[str, torch.Tensor]) -> str:
    """The fingerprint of a state dict."""
    digest = Digest()
    for name, tensor in sorted(state.items()):
        digest.add(name, tensor)
    return digest.text


class Digest:
    """The fingerprint of tensors that are added one by one, in the order of their names."""

    def __init__(self) -> None:
        self._hasher = hashlib.sha256()

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add the next tensor."""
        self._hasher.update(name.encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        self._hasher.update(flat.view(torch.uint8).numpy().tobytes())

    @property
    def text(self) -> str:
        """The fingerprint of all tensors so far."""
        return self._hasher.hexdigest()[:32]
