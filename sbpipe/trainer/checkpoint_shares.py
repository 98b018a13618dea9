"""The sharded tensors of a checkpoint: one safetensors file of each rank, and an index.

The planners of torch.distributed.checkpoint decide which rank holds what, and what a rank with another share
must read from which file. `ShareReader` is a storage for them, so `torch.distributed.checkpoint.load` reads
our folders too. Three parts of torch.distributed.checkpoint are not used:

- its own files: their `.metadata` is a pickle, and reading another's pickle runs its code. Ours are raw
  numbers behind a JSON header, and the index is plain values in rank 0's file;
- its safetensors writer: it copies a rank's whole share in memory first, computes no digest and reports no
  progress. The file format is the same, so its reader (HuggingFaceStorageReader) takes ours;
- its `save`, by which ranks send each other plans as pickles. Here a rank plans alone what it holds, and
  sends rank 0 its part of the index as JSON (`ranks/saving.py`).

It must not know steps, runs, or how ranks talk.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.tensor import DTensor
from torch.futures import Future

from sbpipe.files import atomic_file
from sbpipe.trainer.summed import Summed, check_room, digest_of

MARK = "__share__"
"""The key under which the state of rank 0 has a name in place of a sharded tensor."""
FILE = "{}.safetensors"
_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The types that a file may hold, as safetensors calls them."""
_TYPES = {code: kind for kind, code in _CODES.items()}

Index = dict[str, Any]
"""Of a whole folder: {"folder", "tensors": {name: [type, shape]}, "files": [Record]}. Plain values."""
Record = dict[str, Any]
"""Of one file: {"name", "bytes", "digest", "chunks": {tensor: [offsets, sizes]}}."""


# --- what a rank holds ----------------------------------------------------------------------------


def cut(state: Any, ties: Mapping[str, str], path: str = "") -> tuple[Any, dict[str, DTensor]]:
    """A state with marks in place of sharded tensors, and these tensors by name.

    `ties` maps the second name of a tensor to its first: it is written once.
    """
    if isinstance(state, DTensor):
        name = ties.get(path, path)
        return {MARK: name}, {name: state}
    if isinstance(state, torch.Tensor):
        return state.detach().cpu().clone(), {}
    if isinstance(state, (dict, list)):
        pairs = list(state.items() if isinstance(state, dict) else enumerate(state))
        parts = [cut(inner, ties, f"{path}/{key}" if path else str(key)) for key, inner in pairs]
        found = {name: tensor for _, tensors in parts for name, tensor in tensors.items()}
        values = [value for value, _ in parts]
        return (
            dict(zip([key for key, _ in pairs], values, strict=True)) if isinstance(state, dict) else values
        ), found
    return state, {}


def filled(state: Any, tensor_of: Callable[[str], Any]) -> Any:
    """The inverse of `cut`: a tensor for each mark."""
    if isinstance(state, dict):
        if set(state) == {MARK}:
            return tensor_of(state[MARK])
        return {key: filled(inner, tensor_of) for key, inner in state.items()}
    return [filled(inner, tensor_of) for inner in state] if isinstance(state, list) else state


class Share(DefaultSavePlanner):
    """One rank's part of the sharded tensors, copied to the host: the model may change afterwards."""

    def __init__(self, tensors: Mapping[str, DTensor]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.set_up_planner(dict(tensors), is_coordinator=True)
        # Where there are more ranks than rows, a rank holds nothing.
        self.items = [
            item
            for item in self.create_local_plan().items
            if item.tensor_data and math.prod(item.tensor_data.chunk.sizes)
        ]
        self.form = {
            name: [_CODES[tensor.dtype], list(tensor.shape)] for name, tensor in sorted(tensors.items())
        }
        self._copies = {
            item.index.fqn: tensors[item.index.fqn].to_local().detach().cpu().contiguous().clone()
            for item in self.items
        }
        self.state_dict = {}

    def lookup_object(self, index: MetadataIndex) -> torch.Tensor:
        """What is written of a tensor."""
        return self._copies[index.fqn]

    @property
    def is_finite(self) -> bool:
        """Whether all its numbers are finite."""
        return all(bool(copy.isfinite().all()) for copy in self._copies.values() if copy.is_floating_point())

    @property
    def num_bytes(self) -> int:
        """The size of its file without the header."""
        return sum(copy.nbytes for copy in self._copies.values())


def write(path: Path, share: Share, on_piece: Callable[[], None], *, num_ranks: int = 1) -> Record:
    """Write one rank's file to disk; returns its record for the index. Raises OSError.

    Checks for room for the files of all ranks: they usually share a disk.
    """
    check_room(path.parent, share.num_bytes * num_ranks)
    chunks = {item.index.fqn: item.tensor_data.chunk for item in share.items if item.tensor_data}
    header: dict[str, Any] = {"__metadata__": _for_torch(chunks)}
    end = 0
    for item in share.items:
        copy = share.lookup_object(item.index)
        begin, end = end, end + copy.nbytes
        header[item.index.fqn] = {
            "dtype": _CODES[copy.dtype],
            "shape": list(copy.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    # Numbers begin at a multiple of eight, as readers that map the file expect.
    text += b" " * (-len(text) % 8)
    with atomic_file(path, is_durable=True) as file:
        summed = Summed(file, on_piece)
        summed.write(len(text).to_bytes(8, "little") + text)
        for item in share.items:
            summed.write(share.lookup_object(item.index).reshape(-1).view(torch.uint8).numpy().data)
    return {
        "name": path.name,
        "bytes": 8 + len(text) + end,
        "digest": summed.digest.hexdigest(),
        "chunks": {name: [list(chunk.offsets), list(chunk.sizes)] for name, chunk in chunks.items()},
    }


def _for_torch(chunks: Mapping[str, ChunkStorageMetadata]) -> dict[str, str]:
    """Where the share of each tensor begins in the whole one, as torch's own reader expects it."""
    offsets = {name: {"saved_offsets": list(chunk.offsets)} for name, chunk in chunks.items()}
    return {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}


# --- reading --------------------------------------------------------------------------------------


def fault_of(folder: Path, index: Index, on_piece: Callable[[], None] = lambda: None) -> str:
    """Why the files of an index cannot be used; "" if every byte is as written and no share is missing."""
    for record in index["files"]:
        # Only the file name is used: a crafted checkpoint must not lead to a file outside of its own folder.
        path = folder / Path(record["name"]).name
        try:
            if path.stat().st_size != record["bytes"] or digest_of(path, on_piece) != record["digest"]:
                return f"{path.parent.name}/{path.name} is not as it was written"
        except OSError as error:
            return f"{path.parent.name}/{path.name} cannot be read ({error.strerror or error})"
    for name, (_, shape) in index["tensors"].items():
        sizes = [record["chunks"][name][1] for record in index["files"] if name in record["chunks"]]
        if sum(map(math.prod, sizes)) != math.prod(shape):
            return f"parts of {name} are missing"
    return ""


def read(folder: Path, index: Index, into: Mapping[str, torch.Tensor]) -> None:
    """Fill tensors from the files: whole tensors, or this rank's present share of them.

    Raises OSError, ValueError or RuntimeError where files and tensors do not fit.
    """
    reader, planner = ShareReader(folder, index), DefaultLoadPlanner(flatten_state_dict=False)
    metadata = reader.read_metadata()
    with torch.no_grad():
        planner.set_up_planner(dict(into), metadata, is_coordinator=True)
        reader.set_up_storage_reader(metadata, is_coordinator=True)
        reader.read_data(planner.create_local_plan(), planner).wait()


def read_whole(state: Any, folder: Path, index: Index) -> Any:
    """A state with whole tensors in place of marks; one with two names is there twice, as if gathered."""
    wanted = set(_marks(state))
    whole = {
        name: torch.empty(shape, dtype=_TYPES[code])
        for name, (code, shape) in index["tensors"].items()
        if name in wanted
    }
    read(folder, index, whole)
    used: set[str] = set()

    def tensor_of(name: str) -> torch.Tensor:
        tensor = whole[name].clone() if name in used else whole[name]
        used.add(name)
        return tensor

    return filled(state, tensor_of)


def _marks(state: Any) -> Iterator[str]:
    if isinstance(state, dict):
        if set(state) == {MARK}:
            yield state[MARK]
            return
        state = list(state.values())
    if isinstance(state, list):
        for inner in state:
            yield from _marks(inner)


def type_of(index: Index, name: str) -> torch.dtype:
    """The type of a tensor."""
    return _TYPES[index["tensors"][name][0]]


def shape_of(index: Index, name: str) -> torch.Size:
    """The whole shape of a tensor."""
    return torch.Size(index["tensors"][name][1])


class ShareReader(StorageReader):
    """A folder of shares as a storage of torch.distributed.checkpoint."""

    def __init__(self, folder: Path, index: Index) -> None:
        self._folder, self._index = folder, index
        self._files: dict[MetadataIndex, Path] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        """It reads one folder only."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Always False: a folder's name is not enough, the index is needed."""
        return False

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Where each tensor lies, as torch's metadata."""
        chunks: dict[str, list[ChunkStorageMetadata]] = {name: [] for name in self._index["tensors"]}
        for record in self._index["files"]:
            for name, (offsets, sizes) in record["chunks"].items():
                chunks[name].append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
                self._files[MetadataIndex(name, offsets)] = self._folder / Path(record["name"]).name
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(dtype=_TYPES[code]), torch.Size(shape), chunks[name]
                )
                for name, (code, shape) in self._index["tensors"].items()
            }
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Nothing to do."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Every rank reads what it needs."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Every rank reads what it needs."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy what was planned, file by file."""
        by_file: dict[Path, list[Any]] = {}
        for item in plan.items:
            by_file.setdefault(self._files[item.storage_index], []).append(item)
        for path, items in by_file.items():
            try:
                with safe_open(path, framework="pt") as file:
                    for item in items:
                        places = tuple(
                            slice(begin, begin + length)
                            for begin, length in zip(item.storage_offsets, item.lengths, strict=True)
                        )
                        into = planner.resolve_tensor(item).detach()
                        into.copy_(file.get_slice(item.storage_index.fqn)[places])
                        planner.commit_tensor(item, into)
            except SafetensorError as error:
                raise OSError(f"{path} cannot be read ({error})") from None
        done: Future[None] = Future()
        done.set_result(None)
        return done
