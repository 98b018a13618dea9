"""Messages to frames and back: one encoder, one decoder, the only file that imports msgpack.

    frame 0   prefix, 42 bytes, little-endian
                  4  magic "SBPL"
                  2  protocol major        2  protocol minor
                  2  type code
                 16  session of the trainer
                  8  sequence number of the sender
                  4  header length
                  4  crc32 of the 38 bytes before and of the header
    frame 1   header: a msgpack map of exactly the fields that schema.py lists for the type;
                  an array stands there as [dtype, length, crc32], or nil
    frame 2…  the arrays that are not nil, in the order of schema.py: raw, little-endian, as announced

The layout of the prefix, and the whole of Reject (type 4, {"reason": str}, two frames), never change,
whatever the major: so two versions that share nothing else can still tell each other why they do not talk.

The size of a frame is checked before the frame is used. Arrays are views of the frames (read-only, not
copied). Any fault raises FrameError and nothing else. It must not know sockets, nor what the receiver does
with a message.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped]
import numpy as np

from sbpipe.link.kinds import BadFrame, made
from sbpipe.link.limits import MAX_ENTRIES
from sbpipe.link.messages import BULK, Chunk, Message
from sbpipe.link.schema import CODES, DTYPES, REJECT, SHAPES, Array, Shape

MAGIC = b"SBPL"
# Any change of fields is a new major: a decoder refuses both unknown and missing ones.
PROTOCOL = (8, 0)
PREFIX = struct.Struct("<4sHHH16sQI")
CRC = struct.Struct("<I")
PREFIX_BYTES = PREFIX.size + CRC.size
MAX_FRAMES = 2 + max(len(shape.arrays) for shape in SHAPES.values())

Buffer = bytes | memoryview


class ProtocolMismatch(BadFrame):
    """The peer speaks another protocol major; both versions as (major, minor)."""

    def __init__(self, theirs: tuple[int, int], ours: tuple[int, int] = PROTOCOL) -> None:
        both = f"the peer speaks {theirs[0]}.{theirs[1]}, this side {ours[0]}.{ours[1]}"
        super().__init__(
            "protocol",
            f"{both}; both sides need the same first number: install the same sbpipe version on both",
        )
        self.theirs = theirs
        self.ours = ours


class Envelope(NamedTuple):
    """A message and the fields of its prefix."""

    session: bytes
    sequence: int
    message: Message


@dataclass(frozen=True)
class Body:
    """A checked and packed message that only lacks its prefix."""

    code: int
    frames: list[Buffer]

    @property
    def is_bulk(self) -> bool:
        """Whether it goes over the bulk pair."""
        return SHAPES[self.code].kind in BULK


def encode(message: Message, *, session: bytes, sequence: int) -> list[Buffer]:
    """All frames of a message; arrays and chunk data are views, so they must not change before it is sent."""
    return seal(pack(message), session=session, sequence=sequence)


def pack(message: Message) -> Body:
    """The frames behind the prefix."""
    code = CODES.get(type(message))
    if code is None:
        raise BadFrame("type", f"{type(message).__name__} is not a message")
    shape = SHAPES[code]
    header = _plain_fields(shape, message)
    frames: list[Buffer] = []
    for name, array in shape.arrays.items():
        view = _array_view(name, getattr(message, name), array)
        header[name] = (
            None if view is None else [array.dtype, view.nbytes // DTYPES[array.dtype], zlib.crc32(view)]
        )
        frames += [] if view is None else [view]
    _check_meaning(shape, message)
    try:
        packed: bytes = msgpack.packb(header)
    except ValueError as error:
        raise BadFrame("header", f"{shape.kind.__name__} cannot be packed ({error})") from None
    if len(packed) > shape.header_limit:
        raise BadFrame(
            "header",
            f"{shape.kind.__name__} has a header of {len(packed)} bytes, at most {shape.header_limit}",
        )
    return Body(code, [packed, *frames])


def seal(body: Body, *, session: bytes, sequence: int) -> list[Buffer]:
    """The prefix in front of a packed message."""
    if len(session) != 16 or not 0 <= sequence < 1 << 64:
        raise BadFrame("prefix", f"session of {len(session)} bytes, sequence {sequence}")
    header = body.frames[0]
    prefix = PREFIX.pack(MAGIC, *PROTOCOL, body.code, session, sequence, len(header))
    return [prefix + CRC.pack(zlib.crc32(header, zlib.crc32(prefix))), *body.frames]


def decode(frames: Sequence[Buffer]) -> Envelope:
    """The message in a list of frames; FrameError if there is anything wrong with it."""
    if not 2 <= len(frames) <= MAX_FRAMES:
        raise BadFrame("prefix", f"{len(frames)} frames")
    # Bytes cannot be written to anyway, and a view of each costs more than the check.
    prefix, header, *rest = (
        frame if type(frame) is bytes else memoryview(frame).toreadonly() for frame in frames
    )
    if _size(prefix) != PREFIX_BYTES:
        raise BadFrame("prefix", f"{_size(prefix)} bytes, not {PREFIX_BYTES}")
    magic, major, minor, code, session, sequence, header_bytes = PREFIX.unpack_from(prefix)
    if magic != MAGIC:
        raise BadFrame("prefix", "is not of sbpipe")
    # Checked before anything that a later protocol may change; the prefix and Reject never change.
    if major != PROTOCOL[0] and code != REJECT:
        raise ProtocolMismatch((major, minor))
    shape = SHAPES.get(code)
    if shape is None:
        raise BadFrame("type", f"{code} is unknown")
    if header_bytes != _size(header) or header_bytes > shape.header_limit:
        raise BadFrame(
            "header", f"{_size(header)} bytes, {header_bytes} announced, at most {shape.header_limit}"
        )
    if CRC.unpack_from(prefix, PREFIX.size)[0] != zlib.crc32(header, zlib.crc32(prefix[: PREFIX.size])):
        raise BadFrame("header", "the checksum of prefix and header does not match")
    return Envelope(session, sequence, _message_of(shape, _unpack(header), rest))


def _size(frame: Buffer) -> int:
    """The size of a frame in bytes; a view may have larger items."""
    return len(frame) if type(frame) is bytes else memoryview(frame).nbytes


def _plain_fields(shape: Shape, message: Message) -> dict[str, Any]:
    header = {}
    for name, kind in shape.fields.items():
        value = getattr(message, name)
        try:
            plain = kind.plain(value)
        except (TypeError, ValueError, OverflowError, AttributeError):
            # Refused below, with an error that names the field.
            plain = value
        if not kind.is_legal(plain):
            raise _illegal(shape, name, plain)
        header[name] = plain
    return header


def _illegal(shape: Shape, name: str, value: Any) -> BadFrame:
    return BadFrame(
        "fields", f"{shape.kind.__name__}.{name} = {repr(value)[:80]} is not {repr(shape.fields[name])[:120]}"
    )


def _array_view(name: str, value: Any, array: Array) -> memoryview | None:
    if value is None and array.is_optional:
        return None
    try:
        # np.frombuffer shares the memory of a chunk, but refuses an empty one.
        flat = (
            np.frombuffer(value, np.uint8)
            if array.dtype == "|u1" and memoryview(value).nbytes
            else np.ascontiguousarray(value)
        )
    except (TypeError, ValueError, BufferError) as error:
        raise BadFrame("arrays", f"{name} is not an array ({error})") from None
    # The dtype of an empty array means nothing.
    is_wrong = flat.ndim != 1 or (flat.size > 0 and flat.dtype != np.dtype(array.dtype))
    if is_wrong or len(flat) > array.limit:
        raise BadFrame(
            "arrays", f"{name}: {flat.dtype} {flat.shape}; one axis of {array.dtype}, at most {array.limit}"
        )
    return flat.view(np.uint8).data if flat.size else memoryview(b"")


def _unpack(header: Buffer) -> Any:
    try:
        return msgpack.unpackb(
            header,
            use_list=False,
            object_pairs_hook=_unique,
            ext_hook=_no_extension,
            # The longest list is [dtype, length, crc32] of an array.
            max_array_len=3,
            max_map_len=MAX_ENTRIES,
        )
    # StackError and FormatError are ValueErrors; a hashable key of a wrong type is a TypeError in some
    # releases of msgpack.
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise BadFrame("header", f"is not msgpack ({type(error).__name__})") from None


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key stands twice")
    return unique


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension {code} of {len(data)} bytes")


def _message_of(shape: Shape, header: Any, frames: list[Buffer]) -> Message:
    if type(header) is not dict or header.keys() != shape.names:
        raise BadFrame("fields", f"{shape.kind.__name__} has not exactly the fields it should have")
    # Arrays that are nil have no frame: they stay None.
    values: dict[str, Any] = dict.fromkeys(shape.arrays)
    for name, is_legal, restored in shape.rules:
        value = header[name]
        if not is_legal(value):
            raise _illegal(shape, name, value)
        values[name] = value if restored is None else restored(value)
    present = [
        name for name, array in shape.arrays.items() if header[name] is not None or not array.is_optional
    ]
    if len(present) != len(frames):
        raise BadFrame(
            "arrays", f"{shape.kind.__name__} came with {len(frames)} arrays, {len(present)} announced"
        )
    for name, frame in zip(present, frames, strict=True):
        _check_array(name, shape.arrays[name], header[name], frame)
        values[name] = (
            memoryview(frame) if shape.kind is Chunk else np.frombuffer(frame, shape.arrays[name].dtype)
        )
    message: Message = made(shape.kind, values)
    _check_meaning(shape, message)
    return message


def _check_array(name: str, array: Array, announced: Any, frame: Buffer) -> None:
    is_described = type(announced) is tuple and len(announced) == 3 and announced[0] == array.dtype
    if not is_described or not _is_count(announced[1]) or not _is_count(announced[2]):
        raise BadFrame("arrays", f"{name} is not announced as [{array.dtype}, length, crc32]")
    length, crc = announced[1:]
    if length > array.limit or _size(frame) != length * DTYPES[array.dtype]:
        raise BadFrame(
            "arrays",
            f"{name}: {_size(frame)} bytes came, {length} of {array.dtype} announced, at most {array.limit}",
        )
    if zlib.crc32(frame) != crc:
        raise BadFrame("arrays", f"the checksum of {name} does not match")


def _is_count(number: Any) -> bool:
    return type(number) is int and number >= 0


def _check_meaning(shape: Shape, message: Message) -> None:
    fault = shape.check(message)
    if fault:
        raise BadFrame("meaning", f"{shape.kind.__name__}: {fault}")
