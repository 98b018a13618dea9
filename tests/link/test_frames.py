"""Frames: what is sent is what arrives, and nothing else does."""

import dataclasses
import struct
import zlib
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from sbpipe.errors import FrameError
from sbpipe.link import limits, messages
from sbpipe.link.frames import CRC, MAGIC, PREFIX, PREFIX_BYTES, PROTOCOL, ProtocolMismatch, decode, encode
from sbpipe.link.kinds import BadFrame, Record
from sbpipe.link.schema import CODES, SHAPES
from sbpipe.records import Lease, Part, RunEnd, Selection, SelectorStats

SESSION = bytes(range(16))


def selection(**changes: Any) -> Selection:
    kept = np.array([0, 2], np.int32)
    whole = Selection(
        7,
        3,
        np.array([1.0, np.nan, 2.0], np.float32),
        kept,
        np.array([1.0, 0.0, 0.25], np.float32),
        SelectorStats(score_s=0.5),
    )
    return dataclasses.replace(whole, **changes)


def lease(**changes: Any) -> Lease:
    return dataclasses.replace(
        Lease(1, 0, 128, 512, 128, 128, 9, history=np.linspace(0, 1, 5, dtype=np.float32)), **changes
    )


EXAMPLES: list[tuple[messages.Message, int]] = [
    (messages.Hello("gpu-1", "host", 4242, "cuda:1", "fp16", "0.1.0"), 2),
    (messages.Welcome("{}", "psm_1", 0.5, 4.0), 2),
    (messages.Welcome("{}", "psm_1", 0.5, 4.0, is_channels_last=True), 2),
    (messages.Ready({"model": "abc", "data": "def"}, pulls_weights=True, precision="fp16"), 2),
    (messages.Reject("data differ: 12 here, 13 there"), 2),
    (messages.Fenced(), 2),
    (messages.Heartbeat(12), 2),
    (messages.Heartbeat(12, SelectorStats(weights_version=4, scored=128, agreement=0.99)), 2),
    (messages.Announce(5, 44_700_000), 2),
    (messages.NewKey("k" * 40), 2),
    (messages.Announce(5, 40_000, part=Part.FAST), 2),
    (lease(), 3),
    (lease(strength=0.25, history_classes=np.arange(5, dtype=np.int32), fast_version=11), 4),
    (lease(history=None, exact=True, keep_all=True), 2),
    (lease(history=None, doubted=np.arange(48, dtype=np.uint8), doubt_above=2.3), 3),
    (selection(), 5),
    (selection(predicted=np.array([2, 0, 1], np.int32), fast_version=3), 6),
    (selection(predicted=np.array([2, 0, 1], np.int32), places=np.array([3, 0, 0], np.int32)), 7),
    (selection(kept=np.empty(0, np.int32), keep_probability=np.zeros(3, np.float32)), 5),
    (messages.Goodbye(RunEnd.FINISHED), 2),
    (messages.Goodbye(RunEnd.FAILED, "out of memory"), 2),
    (messages.Fetch(5, 2 << 20, 2 << 20), 2),
    (messages.Fetch(5, 0, 40_000, part=Part.FAST), 2),
    (messages.Chunk(5, 4, 10, b"abcdef"), 3),
    (messages.Chunk(5, 4, 10, b"abcdef", part=Part.FAST), 3),
    (messages.Gone(4), 2),
    (messages.Gone(4, part=Part.FAST), 2),
]


def framed(message: messages.Message) -> list[bytes]:
    return [bytes(frame) for frame in encode(message, session=SESSION, sequence=77)]


def forged(
    code: int,
    header: Any,
    arrays: tuple[bytes, ...] = (),
    major: int = PROTOCOL[0],
    packed: bytes | None = None,
) -> list[bytes]:
    """What a clever liar sends: right checksums around anything."""
    body = msgpack.packb(header) if packed is None else packed
    prefix = PREFIX.pack(MAGIC, major, 0, code, SESSION, 1, len(body))
    return [prefix + CRC.pack(zlib.crc32(body, zlib.crc32(prefix))), body, *arrays]


def header_of(message: messages.Message) -> dict[str, Any]:
    header: dict[str, Any] = msgpack.unpackb(framed(message)[1])
    return header


def assert_same(left: messages.Message, right: messages.Message) -> None:
    assert type(left) is type(right)
    for field in dataclasses.fields(left):
        ours, theirs = getattr(left, field.name), getattr(right, field.name)
        if isinstance(ours, np.ndarray):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
        else:
            assert ours == theirs


@pytest.mark.parametrize(("message", "num_frames"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_every_message_comes_back_as_it_was_in_the_expected_number_of_frames(
    message: messages.Message, num_frames: int
) -> None:
    frames = encode(message, session=SESSION, sequence=77)
    envelope = decode(frames)
    assert len(frames) == num_frames
    assert (envelope.session, envelope.sequence) == (SESSION, 77)
    assert_same(envelope.message, message)


def field_names(record: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(record)}


def test_every_message_has_a_shape_with_exactly_its_fields_and_a_direction() -> None:
    for shape in SHAPES.values():
        assert field_names(shape.kind) == shape.fields.keys() | shape.arrays.keys()
        for kind in shape.fields.values():
            assert not isinstance(kind, Record) or field_names(kind.of) == kind.fields.keys()
    assert (
        set(CODES)
        == {*messages.TO_TRAINER, *messages.TO_SELECTOR}
        == {type(message) for message, _ in EXAMPLES}
    )
    assert len({shape.kind for shape in SHAPES.values()}) == len(SHAPES)


def test_the_prefix_layout_is_frozen() -> None:
    prefix = framed(messages.Fenced())[0]
    assert PREFIX_BYTES == len(prefix) == 42
    assert struct.unpack_from("<4sHHH16sQI", prefix) == (b"SBPL", *PROTOCOL, 5, SESSION, 77, 1)


def test_arrays_are_read_only_views_of_the_received_frames() -> None:
    frames = framed(selection())
    message = decode(frames).message
    assert isinstance(message, Selection)
    assert np.shares_memory(message.scores, np.frombuffer(frames[2], np.uint8))
    assert not message.scores.flags.writeable


def test_chunk_data_is_neither_copied_on_the_way_out_nor_on_the_way_in() -> None:
    snapshot = np.arange(1000, dtype=np.float32)
    frames = encode(messages.Chunk(1, 0, 4000, snapshot.data), session=SESSION, sequence=0)
    message = decode(frames).message
    assert isinstance(message, messages.Chunk)
    assert np.shares_memory(np.frombuffer(frames[2], np.uint8), snapshot)
    assert np.shares_memory(np.frombuffer(message.data, np.uint8), snapshot)
    assert memoryview(message.data).readonly


def test_numpy_scalars_travel_as_plain_numbers() -> None:
    message = decode(
        framed(lease(start=np.int64(3), stop=np.int32(9), exact=np.bool_(True), history=None))
    ).message
    assert message == lease(start=3, stop=9, exact=True, history=None)
    told = SelectorStats(scored=np.int64(3), score_s=np.float32(0.5))  # type: ignore[arg-type]
    heartbeat = decode(framed(messages.Heartbeat(np.int64(4), told))).message  # type: ignore[arg-type]
    assert heartbeat == messages.Heartbeat(4, SelectorStats(scored=3, score_s=0.5))


def test_statistics_beyond_their_range_are_moved_into_it_and_not_refused() -> None:
    told = SelectorStats(view_s=1e300, idle_s=-1e-12, agreement=1.0 + 1e-9)
    message = decode(framed(messages.Heartbeat(0, told))).message
    assert message == messages.Heartbeat(
        0, SelectorStats(view_s=limits.MAX_TOTAL_S, idle_s=0.0, agreement=1.0)
    )


def test_a_reason_that_is_too_long_is_cut_and_not_refused() -> None:
    message = decode(framed(messages.Reject("é" * 10_000))).message
    assert message == messages.Reject("é" * limits.MAX_REASON)


BAD: list[tuple[messages.Message, str]] = [
    (lease(start=512), "empty"),
    (lease(stop=128 + limits.MAX_CANDIDATES + 1), "candidates are more"),
    (lease(start=-1), "start"),
    (lease(most=0), "most"),
    (lease(strength=1.5), "strength"),
    (lease(strength=-0.1), "strength"),
    (lease(strength=float("nan")), "strength"),
    (lease(keep=0.0), "keep"),
    (lease(keep=1.5), "keep"),
    (lease(keep=float("nan")), "keep"),
    (lease(fast_version=-2), "fast_version"),
    (lease(fast_version=8), "older than the whole"),
    (lease(history_classes=np.arange(4, dtype=np.int32)), "as many classes"),
    (lease(history=None, history_classes=np.arange(4, dtype=np.int32)), "as many classes"),
    (lease(history_classes=np.arange(5)), "history_classes"),
    (lease(doubted=np.zeros(1, np.uint8)), "bytes of doubt"),
    (lease(doubted=np.zeros(limits.MAX_CANDIDATES // 8 + 1, np.uint8)), "doubted"),
    (lease(doubt_above=float("nan")), "doubt_above"),
    (lease(lease_id=1 << 60), "lease_id"),
    (lease(history=np.zeros(3)), "history"),
    (lease(history=np.zeros((3, 1), np.float32)), "history"),
    (lease(history=np.zeros(limits.MAX_HISTORY + 1, np.float32)), "history"),
    (selection(kept=np.array([2, 0], np.int32)), "strictly increasing"),
    (selection(kept=np.array([0, 0], np.int32)), "strictly increasing"),
    (selection(kept=np.array([0, 3], np.int32)), "strictly increasing"),
    (selection(kept=np.array([-1, 2], np.int32)), "strictly increasing"),
    (selection(keep_probability=np.ones(2, np.float32)), "3 scores, 2 keep probabilities"),
    (selection(kept=np.array([0, 2], np.int64)), "kept"),
    (selection(keep_probability=np.array([0.0, 1.0, 1.0], np.float32)), "probability 0 was kept"),
    (selection(keep_probability=np.array([0.5, 1.1, 0.5], np.float32)), "outside"),
    (selection(keep_probability=np.array([0.5, np.nan, 0.5], np.float32)), "outside"),
    (selection(predicted=np.array([2, 0, 1])), "predicted"),
    (selection(predicted=np.zeros(limits.MAX_CLASSES + 1, np.int32)), "predicted"),
    (selection(predicted=np.array([2, 2], np.int32)), "predictions are not as many as scores"),
    (selection(predicted=np.array([4, -1], np.int32)), "predictions are not as many as scores"),
    (selection(places=np.array([2, 2], np.int32)), "places are not as many as scores"),
    (selection(fast_version=1 << 60), "fast_version"),
    (selection(fast_version=2), "older than the whole"),
    (selection(kept=np.empty(0, np.int32), fast_version=2), "older than the whole"),
    (selection(stats=None), "stats"),
    (selection(stats=SelectorStats(score_s=float("nan"))), "stats"),
    (selection(stats=SelectorStats(score_s=None)), "stats"),  # type: ignore[arg-type]
    (selection(stats=SelectorStats(scored=-1)), "stats"),
    (selection(stats=SelectorStats(precision="x" * 33)), "stats"),
    (messages.Heartbeat(0, {"scored": 1}), "stats"),  # type: ignore[arg-type]
    (messages.Heartbeat(0, SelectorStats(agreement=float("nan"))), "stats"),
    (messages.Hello("a name", "host", 1, "cpu", "fp32", "0"), "selector_id"),
    (messages.Hello("x" * 65, "host", 1, "cpu", "fp32", "0"), "selector_id"),
    (messages.Hello("x", "host\ud800", 1, "cpu", "fp32", "0"), "cannot be packed"),
    (messages.Welcome("{}", "", float("nan"), 4.0), "heartbeat_s"),
    (messages.Welcome("{}", "", 0.0, 4.0), "heartbeat_s"),
    (messages.Ready({"model": "x" * 129}, False, "fp32"), "fingerprints"),
    (messages.Ready({}, False, "x" * 33), "precision"),
    (messages.NewKey("k" * 39), "public"),
    (messages.NewKey("~" * 40), "public"),
    (messages.Goodbye("done"), "end"),  # type: ignore[arg-type]
    (messages.Fetch(1, 0, 0), "num_bytes"),
    (messages.Fetch(1, 0, limits.MAX_CHUNK_BYTES + 1), "num_bytes"),
    (messages.Chunk(1, 5, 10, b"abcdef"), "6 bytes at 5 of 10"),
    (messages.Chunk(1, 0, 10, b""), "data"),
]


@pytest.mark.parametrize(("message", "says"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_a_message_that_breaks_a_rule_cannot_be_encoded(message: messages.Message, says: str) -> None:
    with pytest.raises(FrameError, match=says):
        encode(message, session=SESSION, sequence=0)


SCORES, KEPT, CHANCES = (
    np.zeros(3, np.float32).tobytes(),
    np.array([0, 2], np.int32).tobytes(),
    np.array([1, 0, 1], np.float32).tobytes(),
)


def gone(version: Any) -> dict[str, Any]:
    return {"version": version, "part": 0}


def announced(dtype: str, data: bytes, length: int | None = None) -> list[Any]:
    return [dtype, len(data) // 4 if length is None else length, zlib.crc32(data)]


def told(**changes: Any) -> dict[str, Any]:
    return dataclasses.asdict(SelectorStats()) | changes


def forged_selection(**changes: Any) -> list[bytes]:
    header = {
        "lease_id": 1,
        "version": 1,
        "stats": told(),
        "fast_version": -1,
        "predicted": None,
        "places": None,
    }
    arrays = {
        "scores": announced("<f4", SCORES),
        "kept": announced("<i4", KEPT),
        "keep_probability": announced("<f4", CHANCES),
    }
    return forged(9, header | arrays | changes, (SCORES, KEPT, CHANCES))


FORGERIES: list[tuple[list[bytes], str]] = [
    (forged(99, {}), "type"),
    (forged(5, {"extra": 1}), "fields"),
    (forged(4, {}), "fields"),
    (forged(4, {"reason": b"bytes"}), "fields"),
    (forged(4, {"reason": "x" * (limits.MAX_REASON + 1)}), "fields"),
    (forged(4, ["reason"]), "fields"),
    (forged(13, {"version": 1}), "fields"),
    (forged(13, gone(True)), "fields"),
    (forged(13, gone(1.0)), "fields"),
    (forged(13, gone(-1)), "fields"),
    (forged(13, gone((1 << 64) - 1)), "fields"),
    (forged(13, gone(1) | {"part": 2}), "fields"),
    (forged(13, gone(1) | {"part": False}), "fields"),
    (forged_selection(fast_version=0), "meaning"),
    (forged_selection(fast_version=-2), "fields"),
    (forged_selection(fast_version=None), "fields"),
    (forged(6, {"progress": 0, "stats": {}}), "fields"),
    (forged(10, {"end": "over", "reason": ""}), "fields"),
    (forged(10, {"end": 0, "reason": ""}), "fields"),
    (forged(6, {"progress": 0, "stats": told(view_s={"b": 1.0})}), "fields"),
    (forged(6, {"progress": 0, "stats": told(view_s=float("inf"))}), "fields"),
    (forged(6, {"progress": 0, "stats": told(view_s=-1.0)}), "fields"),
    (forged(6, {"progress": 0, "stats": told(view_s=1)}), "fields"),
    (forged(6, {"progress": 0, "stats": told(scored=1.0)}), "fields"),
    (forged(6, {"progress": 0, "stats": told(agreement=1.5)}), "fields"),
    (forged(6, {"progress": 0, "stats": told(busy_s=1.0)}), "fields"),
    (forged(8, header_of(lease(history=None)) | {"stop": 128}), "meaning"),
    (forged(13, None, packed=b"\x81\xa7version"), "header"),
    (forged(13, None, packed=msgpack.packb(gone(1)) + b"\x00"), "header"),
    (forged(13, None, packed=b"\x82" + 2 * (b"\xa7version" + b"\x01")), "header"),
    (forged(13, None, packed=b"\x81\xa7version" + msgpack.packb(msgpack.ExtType(5, b"x"))), "header"),
    (forged(13, None, packed=b"\x81\xa7version" + msgpack.packb(msgpack.Timestamp(5, 0))), "fields"),
    (forged(13, None, packed=b"\x91" * 5000 + b"\x00"), "header"),
    (forged(13, None, packed=b"\xdf\xff\xff\xff\xff"), "header"),
    (forged(13, None, packed=b"\xdd\xff\xff\xff\xff"), "header"),
    (forged(13, None, packed=b"\x81\x90\x01"), "header"),
    (forged(4, {"reason": "x" * limits.MAX_HEADER_BYTES}), "header"),
    (forged_selection(scores=None), "arrays"),
    (forged_selection(scores=announced("<f8", SCORES)), "arrays"),
    (forged_selection(scores=announced("|O", SCORES)), "arrays"),
    (forged_selection(scores=announced("<f4", SCORES, length=1 << 62)), "arrays"),
    (forged_selection(scores=announced("<f4", SCORES, length=-3)), "arrays"),
    (forged_selection(scores=["<f4", 3, 0]), "arrays"),
    (forged_selection(scores=["<f4", 3.0, 0]), "arrays"),
    (forged_selection(scores={"dtype": "<f4"}), "arrays"),
    (forged_selection(stats=None), "fields"),
    (forged_selection()[:-1], "arrays"),
    ([*framed(messages.Fenced()), b"more"], "arrays"),
    ([*framed(selection()), b"more"], "arrays"),
    ([*framed(selection(predicted=np.ones(3, np.int32), places=np.ones(3, np.int32))), b"more"], "prefix"),
    ([], "prefix"),
    ([b""], "prefix"),
    ([b"", b""], "prefix"),
    ([b"x" * 42, b""], "prefix"),
]


@pytest.mark.parametrize(
    ("frames", "reason"), FORGERIES, ids=[f"{i}-{reason}" for i, (_, reason) in enumerate(FORGERIES)]
)
def test_a_forged_message_is_refused_for_the_right_reason(frames: list[bytes], reason: str) -> None:
    with pytest.raises(BadFrame, match=f"^{reason}: ") as caught:
        decode(frames)
    assert caught.value.reason == reason


def test_the_forger_of_these_tests_can_also_tell_the_truth() -> None:
    assert decode(forged(13, gone(1))).message == messages.Gone(1)
    assert isinstance(decode(forged_selection()).message, Selection)


def test_another_protocol_major_is_refused_with_both_versions() -> None:
    with pytest.raises(ProtocolMismatch, match=r"speaks 9\.0, this side 8\.0") as caught:
        decode(forged(1, {"whatever": "a later version says"}, major=9))
    assert (caught.value.theirs, caught.value.ours) == ((9, 0), PROTOCOL)


def test_a_reject_can_be_read_under_every_protocol_major() -> None:
    assert decode(forged(4, {"reason": "you are too old"}, major=9)).message == messages.Reject(
        "you are too old"
    )


def test_a_flipped_bit_anywhere_in_a_chunk_is_noticed() -> None:
    frames = framed(messages.Chunk(1, 0, 64, bytes(64)))
    for number, frame in enumerate(frames):
        for position in range(len(frame)):
            damaged = bytearray(frame)
            damaged[position] ^= 0x10
            with pytest.raises(FrameError, match=r"."):
                decode([*frames[:number], bytes(damaged), *frames[number + 1 :]])


counts, parts = st.integers(0, limits.MAX_COUNT), st.sampled_from(Part)
names = st.text("abcXYZ019", min_size=1, max_size=64)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=64)
short_texts = texts.filter(lambda text: len(text) <= 32)
totals, correlations = st.floats(0, limits.MAX_TOTAL_S), st.none() | st.floats(-1, 1)
stats = st.builds(
    SelectorStats,
    weights_version=st.integers(-1, limits.MAX_COUNT),
    precision=st.sampled_from(["", "fp32", "int8"]),
    **dict.fromkeys(("scored", "applied", "overflowed", "checks", "failed_checks", "estimated"), counts),
    **dict.fromkeys(
        ("view_s", "score_s", "score_cpu_s", "select_s", "apply_s", "tune_s", "idle_s", "slowest_chunk_s"),
        totals,
    ),
    **dict.fromkeys(("apply_ms", "transfer_ms", "refresh_ms"), st.none() | totals),
    **dict.fromkeys(("agreement", "scale_agreement", "statistics_agreement"), correlations),
    **dict.fromkeys(("evaluation_loss", "batch_loss"), st.none() | st.floats(-1e30, 1e30)),
)

scores = npst.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32))
seconds = st.floats(limits.MIN_PERIOD_S, limits.MAX_PERIOD_S)


def fast_versions(version: int) -> st.SearchStrategy[int]:
    return st.just(-1) | st.integers(version, limits.MAX_COUNT)


@st.composite
def leases(draw: st.DrawFn) -> Lease:
    start, length = draw(counts.filter(lambda n: n < 1 << 52)), draw(st.integers(1, limits.MAX_CANDIDATES))
    version, history = draw(counts), draw(st.none() | scores)
    has_classes = history is not None and draw(st.booleans())
    return Lease(
        draw(counts),
        draw(counts),
        start,
        start + length,
        draw(st.integers(1, 1 << 20)),
        draw(st.integers(1, 1 << 20)),
        version,
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.floats(0, 1)),
        history,
        draw(npst.arrays(np.int32, len(history))) if history is not None and has_classes else None,
        draw(fast_versions(version)),
        draw(st.floats(limits.MIN_KEEP, 1)),
    )


def counts_of(total: int) -> st.SearchStrategy[NDArray[np.int32]]:
    """So many predictions over a few classes."""
    return st.integers(1, 12).map(
        lambda classes: np.bincount(np.arange(total) % classes, minlength=classes).astype(np.int32)
    )


@st.composite
def selections(draw: st.DrawFn) -> Selection:
    every = draw(scores)
    kept = np.flatnonzero(draw(npst.arrays(np.bool_, len(every)))).astype(np.int32)
    chances = draw(npst.arrays(np.float32, len(every), elements=st.floats(0, 1, exclude_min=True, width=32)))
    predicted, places = (draw(st.none() | counts_of(len(every))) for _ in range(2))
    version = draw(counts)
    return Selection(
        draw(counts),
        version,
        every,
        kept,
        chances,
        draw(stats),
        predicted,
        draw(fast_versions(version)),
        places,
    )


@st.composite
def chunks(draw: st.DrawFn) -> messages.Chunk:
    data, offset = draw(st.binary(min_size=1, max_size=200)), draw(st.integers(0, 1 << 30))
    return messages.Chunk(
        draw(counts), offset, offset + len(data) + draw(st.integers(0, 1 << 30)), data, draw(parts)
    )


any_message: st.SearchStrategy[messages.Message] = st.one_of(
    st.builds(messages.Hello, names, texts, counts, texts, short_texts, texts),
    st.builds(messages.Welcome, texts, texts, seconds, seconds),
    st.builds(
        messages.Ready, st.dictionaries(texts.filter(bool), texts, max_size=8), st.booleans(), short_texts
    ),
    st.builds(messages.Reject, texts),
    st.just(messages.Fenced()),
    st.builds(messages.Heartbeat, counts, st.none() | stats),
    st.builds(messages.Announce, counts, st.integers(0, limits.MAX_SNAPSHOT_BYTES), parts),
    st.builds(messages.Goodbye, st.sampled_from(RunEnd), texts),
    st.builds(
        messages.Fetch,
        counts,
        st.integers(0, limits.MAX_SNAPSHOT_BYTES),
        st.integers(1, limits.MAX_CHUNK_BYTES),
        parts,
    ),
    st.builds(messages.Gone, counts, parts),
    leases(),
    selections(),
    chunks(),
)


@settings(deadline=None, max_examples=200)
@given(any_message, st.binary(min_size=16, max_size=16), st.integers(0, (1 << 64) - 1))
def test_any_message_comes_back_as_it_was(message: messages.Message, session: bytes, sequence: int) -> None:
    envelope = decode([bytes(frame) for frame in encode(message, session=session, sequence=sequence)])
    assert (envelope.session, envelope.sequence) == (session, sequence)
    assert_same(envelope.message, message)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.binary(max_size=80), max_size=7))
def test_random_bytes_are_refused_with_a_frame_error(frames: list[bytes]) -> None:
    with pytest.raises(FrameError, match=r"."):
        decode(frames)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted(SHAPES)), st.binary(max_size=120), st.lists(st.binary(max_size=40), max_size=3))
def test_random_headers_under_a_right_checksum_are_a_message_or_a_frame_error(
    code: int, header: bytes, arrays: list[bytes]
) -> None:
    try:
        decode(forged(code, None, tuple(arrays), packed=header))
    except FrameError:
        return
    assert (code, header) == (CODES[messages.Fenced], b"\x80")


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None, max_examples=300)
@given(any_message, st.data())
def test_a_field_replaced_by_anything_gives_a_message_or_a_frame_error(
    message: messages.Message, data: st.DataObject
) -> None:
    frames = framed(message)
    header = msgpack.unpackb(frames[1])
    if header:
        header[data.draw(st.sampled_from(sorted(header)))] = data.draw(anything)
    try:
        envelope = decode(forged(CODES[type(message)], header, tuple(frames[2:])))
    except FrameError:
        return
    encode(envelope.message, session=SESSION, sequence=0)


@settings(deadline=None, max_examples=300)
@given(any_message, st.data())
def test_a_mutated_or_truncated_message_is_never_taken_for_another(
    message: messages.Message, data: st.DataObject
) -> None:
    frames = framed(message)
    number = data.draw(st.integers(0, len(frames) - 1))
    cut = data.draw(st.integers(0, len(frames[number])))
    mutated = data.draw(
        st.sampled_from(
            [
                [
                    *frames[:number],
                    frames[number][:cut] + b"\x5a" + frames[number][cut:],
                    *frames[number + 1 :],
                ],
                [*frames[:number], frames[number][:cut][:-1], *frames[number + 1 :]],
                frames[:number],
                [*frames, frames[number]],
            ]
        )
    )
    # An empty array cut shorter is still the empty array.
    if mutated != frames:
        with pytest.raises(FrameError, match=r"."):
            decode(mutated)


def test_bulk_messages_are_exactly_those_of_a_transfer() -> None:
    assert set(messages.BULK) == {messages.Fetch, messages.Chunk, messages.Gone}
