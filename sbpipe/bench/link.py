"""The wire on one host: selections per second, and weights by pieces, over a Unix socket and under CURVE."""

import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from sbpipe.bench.rows import Row, seconds_per_call
from sbpipe.config import LinkConfig
from sbpipe.link.connection import read_connection
from sbpipe.link.frames import decode, encode
from sbpipe.link.messages import Chunk, Fetch, Hello, Message, Welcome
from sbpipe.link.opening import Listener, open_selector_port
from sbpipe.link.selector_port import SelectorPort
from sbpipe.link.trainer_port import TrainerPort
from sbpipe.records import Selection

_NUM_SELECTIONS = 5000
_PIECE = bytes(2 * 2**20)
_NUM_PIECES = 64
_CREDIT = 4


def measure() -> list[Row]:
    """Encode and decode, messages per second, megabytes per second."""
    selection = a_selection()
    codec_s = seconds_per_call(lambda: decode(encode(selection, session=bytes(16), sequence=1)))
    rows = [Row("link", "encode and decode a selection of 384", codec_s * 1e6, "µs")]
    for name, bind in (("Unix socket", "auto"), ("CURVE", "tcp://127.0.0.1:0")):
        rows += _measure_pair(name, selection, LinkConfig(bind=bind))
    return rows


def a_selection() -> Selection:
    """The answer to a lease of 384 of which 128 were kept."""
    scores = np.random.default_rng(0).random(384).astype(np.float32)
    return Selection(1, 1, scores, np.arange(0, 384, 3, dtype=np.int32), np.full(384, 0.5, np.float32))


def _measure_pair(name: str, selection: Selection, link: LinkConfig) -> list[Row]:
    listener = Listener(link)
    trainer = listener.port
    with tempfile.TemporaryDirectory() as folder:
        listener.announce(Path(folder))
        selector = open_selector_port(link, "bench", read_connection(Path(folder)))
    served = threading.Event()
    thread = threading.Thread(target=_serve, args=(trainer, served), daemon=True)
    thread.start()
    try:
        _shake_hands(selector)
        messages_s = _send_selections(selector, selection)
        pieces_s = _pull(selector)
    finally:
        served.set()
        trainer.wake()
        thread.join()
        selector.close()
        trainer.close()
        listener.withdraw()
    rate = _NUM_PIECES * len(_PIECE) / pieces_s / 1e6
    rows = [Row("link", f"weights in pieces of 2 MiB, {name}", rate, "MB/s")]
    return [Row("link", f"selections, {name}", _NUM_SELECTIONS / messages_s, "messages/s"), *rows]


def _serve(port: TrainerPort, is_over: threading.Event) -> None:
    """A trainer that answers a hello, every piece, and the last selection."""
    count = 0
    while not is_over.is_set():
        for peer, message in port.receive(0.2):
            if isinstance(message, Hello):
                port.send(peer, Welcome("{}", "", 1.0, 4.0))
            elif isinstance(message, Fetch):
                port.send(peer, Chunk(message.version, message.offset, _NUM_PIECES * len(_PIECE), _PIECE))
            elif isinstance(message, Selection):
                count += 1
                if count == _NUM_SELECTIONS:
                    port.send(peer, Welcome("{}", "", 1.0, 4.0))


def _await(port: SelectorPort, kind: type[Message], deadline_s: float = 60.0) -> None:
    give_up = time.monotonic() + deadline_s
    while time.monotonic() < give_up:
        if any(isinstance(message, kind) for message in port.receive(0.2)):
            return


def _shake_hands(port: SelectorPort) -> None:
    port.send(Hello("bench", "host", 1, "cpu", "fp32", "0"))
    _await(port, Welcome)


def _send_selections(port: SelectorPort, selection: Selection) -> float:
    begin = time.perf_counter()
    for _ in range(_NUM_SELECTIONS):
        while not port.send(selection):
            port.receive(0.001)
    _await(port, Welcome)
    return time.perf_counter() - begin


def _pull(port: SelectorPort) -> float:
    begin = time.perf_counter()
    asked = came = 0
    # A few ahead, as the selector pulls: one at a time would measure round trips.
    while came < _NUM_PIECES and time.perf_counter() < begin + 60.0:
        while asked < min(_NUM_PIECES, came + _CREDIT):
            port.send(Fetch(1, asked * len(_PIECE), len(_PIECE)))
            asked += 1
        came += sum(isinstance(message, Chunk) for message in port.receive(0.2))
    return time.perf_counter() - begin
