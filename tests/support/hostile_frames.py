"""Frames as no honest peer sends them: what the decoder and the gates must turn away without harm.

    PYTHONPATH=tests python -m support.hostile_frames --count 1000000      inputs, from --seed on
    PYTHONPATH=tests python -m support.hostile_frames --keep tests/link/corpus

Every input is a pure function of (seed, number). Only BadFrame may come out of `decode`, nothing out of a
gate; what fails is written to --keep, one JSON file each, and stays in the corpus that a test goes through.
"""

import argparse
import json
import random
import resource
import struct
import sys
import time
import tracemalloc
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np

from sbpipe.link import messages
from sbpipe.link.frames import CRC, MAGIC, PREFIX, PREFIX_BYTES, PROTOCOL, decode, encode
from sbpipe.link.gate import SelectorGate, TrainerGate
from sbpipe.link.kinds import BadFrame
from sbpipe.link.limits import MAX_PEERS
from sbpipe.link.schema import SHAPES
from sbpipe.records import Lease, Part, RunEnd, Selection, SelectorStats

Frames = list[bytes]

CORPUS = Path(__file__).parents[1] / "link" / "corpus"
SESSION = bytes(range(16))
SLOW_S = 1.0
"""Processor time of one input from which it counts as failed."""
FRESH_EVERY = 2000
"""Inputs after which the gates are new ones: they refuse a peer after three bad messages."""
WEIGH_EVERY = 500
"""One input of so many is weighed: what memory it takes at most."""
MOST_BYTES = 16 << 20


def _valid() -> list[Frames]:
    scores = np.linspace(0, 1, 7, dtype=np.float32)
    kept, classes = np.array([1, 3, 6], np.int32), np.array([4, 3], np.int32)
    stats = SelectorStats(weights_version=4, scored=128, agreement=0.99)
    whole: list[messages.Message] = [
        messages.Hello("gpu-1", "host", 4242, "cuda:1", "fp16", "0.1.0"),
        messages.Welcome('{"seed": 1}', "psm_1", 0.5, 4.0),
        messages.Ready({"model": "abc", "data": "def"}, pulls_weights=True, precision="fp16"),
        messages.Reject("data differ"),
        messages.Fenced(),
        messages.Heartbeat(12, stats),
        messages.Announce(5, 44_700_000, part=Part.FAST),
        Lease(1, 0, 128, 512, 128, 128, 9, history=scores, history_classes=np.arange(7, dtype=np.int32)),
        Selection(7, 3, scores, kept, np.full(7, 0.5, np.float32), stats, predicted=classes),
        messages.Goodbye(RunEnd.FAILED, "out of memory"),
        messages.Fetch(5, 2 << 20, 2 << 20),
        messages.Chunk(5, 4, 10, b"abcdef"),
        messages.Gone(4),
    ]
    return [[bytes(frame) for frame in encode(one, session=SESSION, sequence=77)] for one in whole]


VALID = _valid()

BOMBS = (
    b"\xdd\xff\xff\xff\xff",  # a list of 2^32 - 1
    b"\xdf\xff\xff\xff\xff",  # a map of as many
    b"\xdb\xff\xff\xff\xff",  # a text
    b"\xc6\xff\xff\xff\xff",  # bytes
    b"\xc9\xff\xff\xff\xff\x01",  # an extension
    b"\xd6\xff\x00\x00\x00\x00",  # a time stamp
    b"\xdc\xff\xff" + b"\xc0" * 0xFFFF,  # a list that is whole, and long
    b"\x93" + b"\x93\xc0\xc0\xc0" * 3,
    b"\xc1",  # the one code that msgpack never uses
)
STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**53, 2**63, 2**64 - 1, -(2**63), 0.0, -0.0, 1e308, -1e308, 5e-324,
    float("nan"), float("inf"), "", "\0", "\x1b[2J", "a" * 5000, "\U0001f600", b"", b"\xff\xfe", b"x" * 5000,
    [], [1, 2, 3], {}, {"a": 1}, ["<f4", 3, 0], ["<f4", 2**62, 0], ["<i4", -1, 0], ["|O", 1, 0],
    msgpack.Timestamp(1), msgpack.ExtType(5, b"x"),
)  # fmt: skip


class Attacker:
    """One input after the other, each from a generator of its own."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._ways: tuple[Callable[[random.Random], Frames], ...] = (
            _noise,
            _damaged,
            _resealed_damage,
            _strange_header,
            _strange_header,
            _strange_arrays,
            _bomb,
            _nested,
            _mixed,
            _strange_prefix,
        )

    def frames(self, number: int) -> Frames:
        """Input `number`."""
        rng = random.Random(f"{self._seed}/{number}")
        return rng.choice(self._ways)(rng)


# --- ways to be hostile ---------------------------------------------------------------------------


def sealed(
    code: int, header: bytes, arrays: Frames, *, major: int = PROTOCOL[0], sequence: int = 1
) -> Frames:
    """Right checksums around anything."""
    prefix = PREFIX.pack(MAGIC, major, 0, code, SESSION, sequence, len(header))
    return [prefix + CRC.pack(zlib.crc32(header, zlib.crc32(prefix))), header, *arrays]


def _noise(rng: random.Random) -> Frames:
    return [
        rng.randbytes(rng.choice((0, 1, PREFIX_BYTES, rng.randrange(200)))) for _ in range(rng.randrange(9))
    ]


def _damaged(rng: random.Random) -> Frames:
    frames = list(rng.choice(VALID))
    for _ in range(rng.randint(1, 3)):
        k = rng.randrange(len(frames))
        frames[k] = _hurt(rng, frames[k])
    return frames


def _resealed_damage(rng: random.Random) -> Frames:
    prefix, header, *arrays = rng.choice(VALID)
    return sealed(PREFIX.unpack_from(prefix)[3], _hurt(rng, header), arrays)


def _strange_header(rng: random.Random) -> Frames:
    prefix, packed, *arrays = rng.choice(VALID)
    header: dict[Any, Any] = msgpack.unpackb(packed)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice([*header, "unheard"]) if header else "unheard"
        action = rng.randrange(4)
        if action == 0:
            header.pop(name, None)
        elif action == 1 and isinstance(header.get(name), dict):
            inner = dict(header[name])
            inner[rng.choice([*inner, "x"])] = rng.choice(STRANGE)
            header[name] = inner
        else:
            header[name] = rng.choice(STRANGE)
    if rng.random() < 0.1:
        header |= {rng.choice((b"bytes", 7, True, None, 1.5)): 1}
    return sealed(PREFIX.unpack_from(prefix)[3], msgpack.packb(header), arrays, sequence=rng.randrange(2**64))


def _strange_arrays(rng: random.Random) -> Frames:
    prefix, packed, *arrays = rng.choice([frames for frames in VALID if len(frames) > 2])
    code, header = PREFIX.unpack_from(prefix)[3], msgpack.unpackb(packed)
    names = [name for name in SHAPES[code].arrays if header[name] is not None]
    for k in range(len(arrays)):
        if rng.random() < 0.7:
            size = rng.choice((0, 1, 4, 28, 4 * rng.randrange(2000)))
            arrays[k] = rng.choice((rng.randbytes(size), b"\xff" * size, b"\0" * size))
            itemsize = 1 if header[names[k]][0] == "|u1" else 4
            length = rng.choice((size // itemsize, rng.randrange(2**40)))
            header[names[k]] = [header[names[k]][0], length, zlib.crc32(arrays[k])]
    return sealed(code, msgpack.packb(header), arrays)


def _bomb(rng: random.Random) -> Frames:
    bomb = rng.choice(BOMBS)
    if rng.random() < 0.5:
        bomb = b"\x81\xa6reason" + bomb
    return sealed(rng.choice(list(SHAPES)), bomb + rng.randbytes(rng.randrange(20)), [])


def _nested(rng: random.Random) -> Frames:
    depth = rng.choice((2, 30, 600, 1030, 5000, 60_000))
    step = rng.choice((b"\x91", b"\x81\xa1a", b"\x92\xc0"))
    return sealed(rng.choice(list(SHAPES)), (step * depth)[: 64 << 10] + b"\xc0" * rng.randrange(2), [])


def _mixed(rng: random.Random) -> Frames:
    one, other = rng.choice(VALID), rng.choice(VALID)
    frames = [one[0], *rng.choice((one[1:], other[1:])), *other[: rng.randrange(3)]]
    if rng.random() < 0.3:
        rng.shuffle(frames)
    return frames


def _strange_prefix(rng: random.Random) -> Frames:
    _, header, *arrays = rng.choice(VALID)
    fields = [MAGIC, *PROTOCOL, rng.randrange(20), SESSION, rng.randrange(2**64), len(header)]
    fields[rng.choice((1, 2, 3))] = rng.choice((0, 1, 5, 255, 65535))
    if rng.random() < 0.3:
        fields[6] = rng.choice((0, 2**32 - 1, len(header) + 1))
    prefix = struct.pack(PREFIX.format, *fields)
    return [prefix + CRC.pack(zlib.crc32(header, zlib.crc32(prefix))), header, *arrays]


def _hurt(rng: random.Random, frame: bytes) -> bytes:
    at = rng.randrange(len(frame) + 1)
    action = rng.randrange(5)
    if action == 0 and frame:
        at = rng.randrange(len(frame))
        return frame[:at] + bytes([frame[at] ^ 1 << rng.randrange(8)]) + frame[at + 1 :]
    if action == 1:
        return frame[:at]
    if action == 2:
        return frame[:at] + rng.randbytes(rng.randint(1, 8)) + frame[at:]
    if action == 3:
        return frame[:at] + rng.choice(BOMBS)[:64] + frame[at:]
    return frame[at:] + frame[:at]


# --- what must hold -------------------------------------------------------------------------------


class Judges:
    """The decoder and both gates; `judge` raises AssertionError if one of them lets harm through."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self._renew()

    def judge(self, number: int, frames: Frames) -> None:
        """Try one input on all of them."""
        if number % FRESH_EVERY == 0:
            self._renew()
        outcome, said = "taken", ""
        try:
            decode(frames)
        except BadFrame as error:
            outcome, said = error.reason, str(error)
        self.outcomes[outcome] += 1
        assert len(said) < 1000, "the error is too long for a log"
        assert "\n" not in said, "the error is more than one line"
        for is_bulk in (False, True):
            # Some connections are refused by now; a new one comes now and then.
            for route in (b"gpu-1", b"liar-%d" % (number % 7919), b"\xff\x00"):
                verdict = self._trainer.judge(route, frames, is_bulk=is_bulk)
                assert verdict.message is None or verdict.answer is None
            self._selector.judge(frames, is_bulk=is_bulk)
        assert len(self._trainer._callers) <= MAX_PEERS
        assert len(self._trainer._routes) <= MAX_PEERS

    def _renew(self) -> None:
        self._trainer, self._selector = TrainerGate(SESSION, Counter()), SelectorGate(Counter())


def corpus() -> Iterator[tuple[str, Frames]]:
    """Inputs that failed once, or that a decoder is known to fail on, by name."""
    for path in sorted(CORPUS.glob("*.json")):
        yield path.stem, [bytes.fromhex(frame) for frame in json.loads(path.read_text())["frames"]]


def keep(folder: Path, name: str, why: str, frames: Frames) -> None:
    """Add an input to a corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    entry = {"why": why, "frames": [frame.hex() for frame in frames]}
    (folder / f"{name}.json").write_text(json.dumps(entry, indent=1) + "\n")


def weigh(judges: Judges, number: int, frames: Frames) -> int:
    """The greatest memory that one input takes, in bytes."""
    tracemalloc.start()
    try:
        judges.judge(number, frames)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --- the command ----------------------------------------------------------------------------------


def main() -> int:
    """Try so many inputs; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m support.hostile_frames", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for what failed")
    args = parser.parse_args()
    warnings.simplefilter("error")
    attacker, judges = Attacker(args.seed), Judges()
    failures: Counter[str] = Counter()
    slowest, heaviest, began = (0.0, -1), (0, -1), time.process_time()
    for number in range(args.count):
        frames, start = attacker.frames(number), time.process_time()
        try:
            if number % WEIGH_EVERY:
                judges.judge(number, frames)
                slowest = max(slowest, (time.process_time() - start, number))
            else:
                heaviest = max(heaviest, (weigh(judges, number, frames), number))
            assert slowest[1] != number or slowest[0] < SLOW_S, f"took {slowest[0]:.1f} s"
            assert heaviest[1] != number or heaviest[0] < MOST_BYTES, f"took {heaviest[0]} bytes"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what we look for
            why = f"{type(error).__name__}: {error}"[:200]
            failures[why] += 1
            if args.keep and failures[why] == 1:
                keep(args.keep, f"found-{args.seed}-{number}", why, frames)
        if (number + 1) % 100_000 == 0:
            sys.stdout.write(f"{number + 1:,} inputs, {sum(failures.values())} failed\n")
            sys.stdout.flush()
    spent = time.process_time() - began
    sys.stdout.write(
        f"{args.count:,} inputs in {spent:.0f} s of processor time: {sum(failures.values())} failed\n"
        f"slowest {1000 * slowest[0]:.1f} ms (input {slowest[1]}), heaviest {heaviest[0] / 2**20:.2f} MiB "
        f"(input {heaviest[1]}), the process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB\n"
        + "".join(f"  {count:>9,} {reason}\n" for reason, count in judges.outcomes.most_common())
        + "".join(f"FAILED {count:>9,} times: {why}\n" for why, count in failures.most_common())
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
