"""Sockets: what arrives, what does not, and that nothing a peer does stops the trainer."""

import os
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zmq
from support.runs import HANG_S

from sbpipe.config import LinkConfig
from sbpipe.errors import ConfigError, FrameError, RunDirError
from sbpipe.link import limits, messages
from sbpipe.link.addresses import Endpoints
from sbpipe.link.connection import (
    NotThereYet,
    connection_of,
    locate,
    read_connection,
    remove_connection,
    write_connection,
)
from sbpipe.link.frames import CRC, MAGIC, PREFIX, PROTOCOL, Buffer, decode, encode
from sbpipe.link.gate import SelectorGate, TrainerGate
from sbpipe.link.keyring import Keyring
from sbpipe.link.keys import new_keys
from sbpipe.link.opening import Listener, open_selector_port
from sbpipe.link.ports import OnePeerPort, Port
from sbpipe.link.private import VARIABLE
from sbpipe.link.selector_port import SelectorPort
from sbpipe.link.trainer_port import TrainerPort
from sbpipe.records import Lease, RunEnd, Selection, SelectorStats

ANYWHERE = LinkConfig(bind="tcp://127.0.0.1:0")
TRAINER_KEYS, SELECTOR_KEYS = new_keys()
WELCOME = messages.Welcome("{}", "", 0.5, 4.0)


def hello(name: str) -> messages.Hello:
    return messages.Hello(name, "host", 1, "cpu", "fp32", "0.1.0")


def listen(link: LinkConfig) -> TrainerPort:
    return TrainerPort(link, None if link.bind.startswith("ipc:") else Keyring(TRAINER_KEYS))


class Scene:
    """Opens ports and raw sockets, and closes them all."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.ports: list[TrainerPort | SelectorPort] = []
        self.raws: list[zmq.Socket[bytes]] = []

    def trainer(self, link: LinkConfig = ANYWHERE) -> TrainerPort:
        port = listen(link)
        self.ports.append(port)
        return port

    def selector(self, trainer: TrainerPort, link: LinkConfig = ANYWHERE) -> SelectorPort:
        keys = SELECTOR_KEYS if trainer.endpoints.control.startswith("tcp:") else None
        port = SelectorPort(trainer.endpoints, "s1", link, keys)
        self.ports.append(port)
        return port

    def pair(self, link: LinkConfig = ANYWHERE) -> tuple[TrainerPort, SelectorPort]:
        trainer = self.trainer(link)
        selector = self.selector(trainer, link)
        introduce(trainer, selector)
        return trainer, selector

    def socket(self, kind: int) -> zmq.Socket[bytes]:
        raw: zmq.Socket[bytes] = self.context.socket(kind)
        raw.setsockopt(zmq.RCVTIMEO, int(1000 * HANG_S))
        self.raws.append(raw)
        return raw

    def raw(self, endpoint: str, name: bytes = b"raw") -> zmq.Socket[bytes]:
        """A peer that holds a key and says what it likes."""
        dealer = self.socket(zmq.DEALER)
        dealer.setsockopt(zmq.ROUTING_ID, name)
        dealer.curve_publickey, dealer.curve_secretkey = (
            key.encode() for key in (SELECTOR_KEYS.public, SELECTOR_KEYS.secret)
        )
        dealer.curve_serverkey = SELECTOR_KEYS.peer.encode()
        dealer.connect(endpoint)
        return dealer

    def close(self) -> None:
        for port in self.ports:
            port.close()
        self.context.destroy(linger=0)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()


def introduce(trainer: TrainerPort, selector: SelectorPort, name: str = "s1") -> None:
    assert selector.send(hello(name))
    assert take(trainer) == (name, hello(name))
    assert trainer.send(name, WELCOME)
    assert take_one(selector) == WELCOME


def take(port: Port) -> tuple[str, messages.Message]:
    """The one message that comes next."""
    (received,) = port.receive(HANG_S)
    return received


def take_one(port: OnePeerPort) -> messages.Message:
    (received,) = port.receive(HANG_S)
    return received


def until(condition: Callable[[], bool], *ports: TrainerPort | SelectorPort) -> list[object]:
    """Let the ports receive until the condition holds; what they received."""
    came: list[object] = []
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, [port.dropped for port in ports]
        for port in ports:
            came += port.receive(0.01)
    return came


def raw_frames(message: messages.Message, session: bytes, sequence: int = 0) -> list[Buffer]:
    return encode(message, session=session, sequence=sequence)


def test_both_ports_offer_what_the_loops_ask_for(scene: Scene) -> None:
    trainer: Port = scene.trainer()
    selector: OnePeerPort = scene.selector(scene.trainer())
    assert trainer.session != messages.NO_SESSION
    assert selector.session == messages.NO_SESSION


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "tcp://[::1]:0", "tcp://localhost:0", "ipc"])
def test_every_message_travels_over_every_kind_of_address(scene: Scene, address: str, tmp_path: Path) -> None:
    if address == "tcp://[::1]:0" and not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    trainer, selector = scene.pair(LinkConfig(bind=f"ipc://{tmp_path}/link" if address == "ipc" else address))
    assert selector.session == trainer.session
    assert trainer.send("s1", Lease(1, 0, 0, 3, enough=2, most=2, version=0))
    assert take_one(selector) == Lease(1, 0, 0, 3, enough=2, most=2, version=0)
    assert selector.send(
        Selection(1, 0, np.ones(3, np.float32), np.array([1], np.int32), np.ones(3, np.float32))
    )
    peer, answer = take(trainer)
    assert isinstance(answer, Selection)
    assert (peer, answer.kept.tolist()) == ("s1", [1])
    assert selector.send(messages.Fetch(1, 0, 4))
    assert take(trainer) == ("s1", messages.Fetch(1, 0, 4))
    assert trainer.send("s1", messages.Chunk(1, 0, 4, b"abcd"))
    assert take_one(selector) == messages.Chunk(1, 0, 4, b"abcd")
    assert not trainer.dropped
    assert not selector.dropped


def test_a_sent_buffer_may_be_written_over_at_once(scene: Scene) -> None:
    trainer, selector = scene.pair()
    selector.send(messages.Fetch(1, 0, 4))
    take(trainer)
    buffer = np.arange(1 << 20, dtype=np.uint8)
    before = buffer.tobytes()
    trainer.send("s1", messages.Chunk(1, 0, buffer.nbytes, buffer.data))
    buffer[:] = 0
    chunk = take_one(selector)
    assert isinstance(chunk, messages.Chunk)
    assert bytes(chunk.data) == before


def test_control_comes_before_bulk_that_was_there_first(scene: Scene, tmp_path: Path) -> None:
    trainer, selector = scene.pair(LinkConfig(bind=f"ipc://{tmp_path}/link"))
    for _ in range(5):
        selector.send(messages.Fetch(1, 0, 4))
    selector.send(messages.Heartbeat(1))
    until(lambda: all(sock.poll(10) for sock in (trainer._control, trainer._bulk)))
    came = [message for _, message in trainer.receive(HANG_S)]
    assert came[0] == messages.Heartbeat(1)


def test_what_many_have_said_is_handed_on_a_few_at_a_time(scene: Scene) -> None:
    trainer = scene.trainer()
    selectors = [scene.selector(trainer) for _ in range(8)]
    for number, selector in enumerate(selectors):
        introduce(trainer, selector, f"s{number}")
    for selector in selectors:
        for progress in range(10):
            assert selector.send(messages.Heartbeat(progress))
    came = list[list[tuple[str, messages.Message]]]()
    until(lambda: came.append(trainer.receive(HANG_S)) or sum(map(len, came)) >= 80)
    assert max(map(len, came)) <= 16, "whoever has an answer coming waits for the work on no more than these"
    for number in range(8):
        told = [message for some in came for name, message in some if name == f"s{number}"]
        assert told == [messages.Heartbeat(progress) for progress in range(10)]


def test_posts_of_other_threads_are_sent_while_receive_waits(scene: Scene) -> None:
    trainer, selector = scene.pair()
    poster = threading.Thread(
        target=lambda: [trainer.post("s1", messages.Announce(version, 1)) for version in range(50)]
    )
    poster.start()
    versions: list[int] = []
    while len(versions) < 50:
        trainer.receive(0.05)
        versions += [
            message.version for message in selector.receive(0.05) if isinstance(message, messages.Announce)
        ]
    poster.join()
    assert versions == list(range(50))


def test_wake_lets_receive_return_before_its_time_and_is_not_lost(scene: Scene) -> None:
    trainer = scene.trainer()
    trainer.wake()
    assert trainer.receive(HANG_S) == []
    waker = threading.Timer(0.01, trainer.wake)
    waker.start()
    assert trainer.receive(HANG_S) == []
    waker.join()
    assert trainer.receive(0.0) == []


def test_a_post_that_cannot_be_packed_raises_where_it_was_made(scene: Scene) -> None:
    trainer = scene.trainer()
    with pytest.raises(FrameError, match="stats"):
        trainer.post("s1", messages.Heartbeat(0, SelectorStats(score_s=float("nan"))))
    assert trainer.receive(0.0) == []


def test_after_close_post_and_wake_do_nothing(scene: Scene) -> None:
    trainer = scene.trainer()
    trainer.close()
    trainer.close()
    trainer.wake()
    assert not trainer.post("s1", messages.Fenced())


def test_sending_to_an_unknown_peer_says_no_and_is_counted(scene: Scene) -> None:
    trainer = scene.trainer()
    assert not trainer.send("nobody", messages.Fenced())
    assert not trainer.send("", messages.Fenced())
    assert trainer.dropped == {"unreachable": 2}


def test_a_peer_that_stops_reading_never_blocks_the_trainer(scene: Scene) -> None:
    # With chunks of 64 MiB, the queue of either side holds four of them, and the kernel less than one.
    trainer, selector = scene.pair(LinkConfig(bind="tcp://127.0.0.1:0", chunk_mib=64.0))
    selector.send(messages.Fetch(1, 0, 4))
    take(trainer)
    chunk = messages.Chunk(1, 0, 8 << 20, bytes(8 << 20))
    num_sent = next(count for count in range(100) if not trainer.send("s1", chunk))
    assert 4 <= num_sent < 20
    assert trainer.dropped == {"full": 1}
    assert trainer.send("s1", messages.Announce(2, 1))


SELECTOR = """
import sys
from sbpipe.config import LinkConfig
from sbpipe.link.addresses import Endpoints
from sbpipe.link import messages
from sbpipe.link.selector_port import SelectorPort
port = SelectorPort(Endpoints(*sys.argv[1:]), "s1", LinkConfig())
port.send(messages.Hello("s1", "host", 1, "cpu", "fp32", "0"))
while True:
    for _ in port.receive(60.0):
        port.send(messages.Heartbeat(1))
"""


def test_of_a_killed_process_the_port_says_that_it_is_gone(scene: Scene, tmp_path: Path) -> None:
    trainer = scene.trainer(LinkConfig(bind=f"ipc://{tmp_path}/link"))
    with subprocess.Popen([sys.executable, "-c", SELECTOR, *trainer.endpoints]) as process:
        assert isinstance(take(trainer)[1], messages.Hello)
        process.kill()
        process.wait()
        came = until(lambda: not trainer.send("s1", messages.Heartbeat(1)), trainer)
    assert [*came, *trainer.receive(HANG_S)] == [("s1", messages.Departed("its connection is gone"))]
    assert not trainer.send("s1", messages.Heartbeat(1))


def test_a_message_of_another_session_is_fenced_and_the_selector_is_told_once(scene: Scene) -> None:
    trainer, selector = scene.pair()
    selector.session = b"o" * 16
    selector.send(messages.Heartbeat(1))
    selector.send(messages.Heartbeat(2))
    selector.send(messages.Fetch(1, 0, 4))
    came = until(
        lambda: trainer.dropped["fenced"] == 3 and selector.dropped["fenced"] == 1, trainer, selector
    )
    assert came == [messages.Fenced()]
    assert selector.session == messages.NO_SESSION
    assert not selector.send(messages.Heartbeat(3))
    introduce(trainer, selector)
    assert selector.send(messages.Heartbeat(4))
    assert take(trainer) == ("s1", messages.Heartbeat(4))


def test_a_restarted_trainer_receives_the_queue_of_the_old_session_and_fences_it(
    scene: Scene, tmp_path: Path
) -> None:
    link = LinkConfig(bind=f"ipc://{tmp_path}/link")
    old = scene.trainer(link)
    old.close()
    selector = scene.selector(old)
    selector.session = old.session
    assert selector.send(
        Selection(1, 0, np.ones(3, np.float32), np.array([1], np.int32), np.ones(3, np.float32))
    )
    new = scene.trainer(link)
    assert until(lambda: selector.session == messages.NO_SESSION, new, selector) == [messages.Fenced()]
    assert new.dropped == {"fenced": 1}
    introduce(new, selector)
    assert selector.session == new.session != old.session


def test_a_selector_that_lost_its_connection_dials_anew_and_has_no_session(
    scene: Scene, tmp_path: Path
) -> None:
    link = LinkConfig(bind=f"ipc://{tmp_path}/link")
    old, selector = scene.pair(link)
    route = selector._route
    old.close()
    new = scene.trainer(link)
    until(lambda: selector.session == messages.NO_SESSION, new, selector)
    assert selector._route != route
    introduce(new, selector)


def test_the_last_words_of_a_trainer_are_read_though_its_connection_is_gone(
    scene: Scene, tmp_path: Path
) -> None:
    trainer, selector = scene.pair(LinkConfig(bind=f"ipc://{tmp_path}/link"))
    goodbye = messages.Goodbye(RunEnd.FINISHED)
    trainer.send("s1", goodbye)
    trainer.close()
    assert goodbye in until(lambda: selector.session == messages.NO_SESSION, selector)


def test_the_selector_drops_what_another_session_says(scene: Scene) -> None:
    trainer, selector = scene.pair()
    selector.session = b"o" * 16
    trainer.send("s1", messages.Announce(1, 1))
    trainer.send("s1", messages.Goodbye(RunEnd.STOPPED))
    trainer.send("s1", messages.Reject("no"))
    came = until(lambda: selector.dropped["foreign"] == 2, selector)
    assert (came or selector.receive(HANG_S)) == [messages.Reject("no")]


def test_a_second_hello_in_the_name_of_a_living_peer_changes_nothing(scene: Scene) -> None:
    trainer, first = scene.pair()
    second = scene.selector(trainer)
    second.send(hello("s1"))
    assert until(lambda: trainer.dropped["taken"] == 1, trainer) == []
    first.send(messages.Heartbeat(7))
    assert take(trainer) == ("s1", messages.Heartbeat(7))
    trainer.send("s1", messages.Announce(1, 1))
    came: list[object] = []
    while messages.Announce(1, 1) not in came:
        came += first.receive(HANG_S)
    assert second.receive(0.0) == []


@pytest.mark.parametrize("how", ["released", "gone"])
def test_the_name_of_a_peer_that_is_given_up_or_gone_can_be_taken(scene: Scene, how: str) -> None:
    trainer, first = scene.pair()
    if how == "gone":
        first.close()
        until(lambda: not trainer.send("s1", messages.Heartbeat(1)))
        assert isinstance(take(trainer)[1], messages.Departed)
    else:
        trainer.release("s1")
    introduce(trainer, scene.selector(trainer))


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"garbage"], "prefix"),
        ([b"x" * 42, b"y" * 1000], "prefix"),
        ([b""] * 50, "prefix"),
        ([*raw_frames(messages.Fenced(), messages.NO_SESSION), b"more"], "arrays"),
        (raw_frames(WELCOME, messages.NO_SESSION), "misplaced"),
        (raw_frames(messages.Fetch(1, 0, 1), messages.NO_SESSION), "misplaced"),
    ],
)
def test_three_bad_messages_and_the_peer_is_refused_with_a_word(
    scene: Scene, frames: list[bytes], reason: str
) -> None:
    trainer = scene.trainer()
    raw = scene.raw(trainer.endpoints.control)
    for _ in range(3):
        raw.send_multipart(frames)
    raw.send_multipart(raw_frames(hello("raw"), messages.NO_SESSION))
    assert until(lambda: trainer.dropped["refused"] == 1, trainer) == []
    assert trainer.dropped[reason] == 3
    assert isinstance(decode(raw.recv_multipart()).message, messages.Reject)
    introduce(trainer, scene.selector(trainer))


def test_a_connection_has_one_name(scene: Scene) -> None:
    trainer = scene.trainer()
    raw = scene.raw(trainer.endpoints.control)
    for name in ("one", "other"):
        raw.send_multipart(raw_frames(hello(name), messages.NO_SESSION))
    assert until(lambda: trainer.dropped["misplaced"] == 1, trainer) == [("one", hello("one"))]


def test_a_refused_peer_is_not_heard_and_its_connection_is_cut(scene: Scene) -> None:
    trainer, selector = scene.pair()
    trainer.refuse("s1")
    selector.send(messages.Heartbeat(1))
    ((peer, message),) = until(lambda: trainer.dropped["cut"] == 1, trainer)
    assert peer == "s1"
    assert isinstance(message, messages.Departed)
    assert trainer.dropped["refused"] == 1


def test_an_older_selector_is_told_both_versions(scene: Scene) -> None:
    trainer = scene.trainer()
    raw = scene.raw(trainer.endpoints.control)
    prefix = PREFIX.pack(MAGIC, 0, 3, 1, messages.NO_SESSION, 0, 3)
    raw.send_multipart([prefix + CRC.pack(zlib.crc32(b"old", zlib.crc32(prefix))), b"old"])
    until(lambda: trainer.dropped["protocol"] == 1, trainer)
    answer = decode(raw.recv_multipart()).message
    assert isinstance(answer, messages.Reject)
    assert f"the peer speaks 0.3, this side {PROTOCOL[0]}.{PROTOCOL[1]}" in answer.reason


@pytest.mark.parametrize(
    ("pair", "limit"), [("control", limits.CONTROL_FRAME_BYTES), ("bulk", limits.FETCH_FRAME_BYTES)]
)
def test_an_oversize_frame_cuts_its_sender_off_and_costs_nothing(scene: Scene, pair: str, limit: int) -> None:
    trainer, selector = scene.pair()
    raw = scene.raw(getattr(trainer.endpoints, pair))
    monitor = raw.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    raw.send_multipart([bytes(42), bytes(limit + 1)])
    scene.raws.append(monitor)
    assert monitor.poll(int(1000 * HANG_S))
    selector.send(messages.Heartbeat(1))
    assert take(trainer) == ("s1", messages.Heartbeat(1))
    assert not trainer.dropped


def test_the_greatest_selection_and_the_greatest_chunk_pass(scene: Scene) -> None:
    trainer, selector = scene.pair(replace(ANYWHERE, chunk_mib=limits.MAX_CHUNK_BYTES / 2**20))
    scores, kept = (
        np.ones(limits.MAX_CANDIDATES, np.float32),
        np.arange(limits.MAX_CANDIDATES, dtype=np.int32),
    )
    trainer.send("s1", Lease(1, 0, 0, limits.MAX_CANDIDATES, enough=1, most=limits.MAX_CANDIDATES, version=0))
    assert isinstance(take_one(selector), Lease)
    selector.send(Selection(1, 0, scores, kept, scores))
    assert isinstance(take(trainer)[1], Selection)
    selector.send(messages.Fetch(1, 0, limits.MAX_CHUNK_BYTES))
    take(trainer)
    data = bytes(limits.MAX_CHUNK_BYTES)
    trainer.send("s1", messages.Chunk(1, 0, len(data), data))
    chunk = take_one(selector)
    assert isinstance(chunk, messages.Chunk)
    assert len(chunk.data) == len(data)


def test_garbage_for_the_selector_is_counted_and_the_next_message_is_read(
    scene: Scene, tmp_path: Path
) -> None:
    router = scene.socket(zmq.ROUTER)
    endpoints = Endpoints(f"ipc://{tmp_path}/link", f"ipc://{tmp_path}/link.bulk")
    router.bind(endpoints.control)
    selector = SelectorPort(endpoints, "s1", LinkConfig())
    scene.ports.append(selector)
    selector.send(hello("s1"))
    route = router.recv_multipart()[0]
    for frames in (
        [b"garbage"],
        raw_frames(hello("s1"), b"t" * 16),
        raw_frames(messages.Gone(1), b"t" * 16),
        raw_frames(WELCOME, b"t" * 16),
    ):
        router.send_multipart([route, *frames])
    assert until(lambda: selector.session == b"t" * 16, selector) == [WELCOME]
    assert selector.dropped == {"prefix": 1, "misplaced": 2}


def test_the_gate_drops_what_it_has_seen_on_the_same_socket_of_the_same_connection() -> None:
    gate, session = TrainerGate(b"t" * 16, dropped := Counter[str]()), b"t" * 16
    for name in ("s1", "s2"):
        gate.judge(name.encode(), raw_frames(hello(name), messages.NO_SESSION), is_bulk=False)

    def judge(route: bytes, message: messages.Message, sequence: int) -> messages.Message | None:
        is_bulk = isinstance(message, messages.Fetch)
        return gate.judge(route, raw_frames(message, session, sequence), is_bulk=is_bulk).message

    assert judge(b"s1", messages.Heartbeat(1), 5) == messages.Heartbeat(1)
    assert judge(b"s1", messages.Heartbeat(2), 9) == messages.Heartbeat(2)
    assert judge(b"s1", messages.Heartbeat(1), 5) is None
    assert judge(b"s2", messages.Heartbeat(1), 5) == messages.Heartbeat(1)
    assert judge(b"s1", messages.Fetch(1, 0, 1), 6) == messages.Fetch(1, 0, 1)
    assert dropped == {"duplicate": 1}


def test_a_message_of_a_connection_without_a_name_is_fenced() -> None:
    gate = TrainerGate(b"t" * 16, dropped := Counter[str]())
    verdict = gate.judge(b"r", raw_frames(messages.Heartbeat(1), b"t" * 16), is_bulk=False)
    assert (verdict.message, verdict.answer) == (None, messages.Fenced())
    assert gate.judge(b"r", raw_frames(messages.Fetch(1, 0, 1), b"t" * 16), is_bulk=True).answer is None
    assert dropped == {"fenced": 2}


def test_the_selectors_gate_drops_duplicates_until_another_session_begins() -> None:
    gate = SelectorGate(dropped := Counter[str]())
    assert gate.judge(raw_frames(WELCOME, b"a" * 16, 5), is_bulk=False) == WELCOME
    assert gate.judge(raw_frames(messages.Announce(1, 1), b"a" * 16, 5), is_bulk=False) is None
    assert gate.judge(raw_frames(WELCOME, b"b" * 16, 0), is_bulk=False) == WELCOME
    assert gate.judge(raw_frames(messages.Announce(1, 1), b"b" * 16, 1), is_bulk=False) == messages.Announce(
        1, 1
    )
    assert dropped == {"duplicate": 1}


def test_invented_routes_fill_no_memory_and_push_out_nobody_with_a_name() -> None:
    gate, session = TrainerGate(b"t" * 16, Counter()), b"t" * 16
    gate.judge(b"honest", raw_frames(hello("s1"), messages.NO_SESSION), is_bulk=False)
    for number in range(limits.MAX_PEERS + 100):
        gate.judge(f"r{number}".encode(), [b"garbage"], is_bulk=False)
    assert len(gate._callers) == limits.MAX_PEERS
    beat = raw_frames(messages.Heartbeat(1), session, 1)
    assert gate.judge(b"honest", beat, is_bulk=False).message == messages.Heartbeat(1)


# --- opening --------------------------------------------------------------------------------------


def test_port_zero_gives_a_control_port_and_the_next_one(scene: Scene) -> None:
    control, bulk = (int(endpoint.rpartition(":")[2]) for endpoint in scene.trainer().endpoints)
    assert control > 0
    assert bulk == control + 1


def test_a_taken_port_names_the_way_out(scene: Scene) -> None:
    taken = scene.trainer().endpoints.control
    with pytest.raises(ConfigError, match=r"link\.bind.*listens there already.*--bind tcp://127\.0\.0\.1:0"):
        listen(LinkConfig(bind=taken))


def test_a_taken_bulk_port_is_the_one_that_is_named(scene: Scene) -> None:
    bulk = scene.trainer().endpoints.bulk
    below = int(bulk.rpartition(":")[2]) - 1
    other = f"tcp://127.0.0.2:{below}"
    with (
        socket.create_server(("127.0.0.2", below + 1)),
        pytest.raises(ConfigError, match=rf"127\.0\.0\.2:{below + 1}: something listens"),
    ):
        listen(LinkConfig(bind=other))
    scene.trainer(LinkConfig(bind=other))


def test_a_local_socket_is_not_taken_from_a_living_trainer_but_from_a_dead_one(
    scene: Scene, tmp_path: Path
) -> None:
    link = LinkConfig(bind=f"ipc://{tmp_path}/link")
    first = scene.trainer(link)
    with pytest.raises(ConfigError, match="listens there already"):
        listen(link)
    first.close()
    assert (tmp_path / "link").is_socket()
    scene.pair(link)


def test_a_file_that_is_no_socket_is_not_replaced_by_one(tmp_path: Path) -> None:
    (tmp_path / "link.bulk").write_text("precious")
    with pytest.raises(ConfigError, match=r"link\.bulk: it is not a socket"):
        listen(LinkConfig(bind=f"ipc://{tmp_path}/link"))
    assert (tmp_path / "link.bulk").read_text() == "precious"


@pytest.mark.parametrize(
    ("bind", "says"),
    [
        ("127.0.0.1", "is not an address"),
        ("http://127.0.0.1:80", "is not an address"),
        ("tcp://127.0.0.1", "is not an address"),
        ("tcp://127.0.0.1:99999", "at most 65534"),
        ("tcp://127.0.0.1:65535", "at most 65534"),
        ("tcp://[::zz]:5570", "is not an address"),
        ("tcp://[1:2]:5570", "not an IPv6 number"),
        ("tcp://a b:5570", "is not an address"),
        ("ipc://", "has no path"),
        ("ipc://*", "has no path"),
        ("ipc:///" + "x" * 200, "longer than"),
        ("ipc:///nowhere/at/all", "cannot be looked at"),
        ("ipc://@abstract", "has no owner"),
        ("ipc:///tmp/link", "others may reach into it|belongs to"),
    ],
)
def test_a_malformed_address_is_a_config_error(bind: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"link\.bind.*({says})"):
        listen(LinkConfig(bind=bind))


@pytest.mark.parametrize(
    "bind",
    [
        "tcp://127.0.0.1:0",
        "tcp://localhost:0",
        "tcp://[::1]:0",
        "tcp://0.0.0.0:0",
        "tcp://*:0",
        "tcp://[::]:0",
        "tcp://192.168.1.2:5570",
        "tcp://eth0:5570",
        "10.0.0.1:5570",
    ],
)
def test_a_tcp_address_refuses_to_open_without_keys_on_loopback_too(bind: str) -> None:
    with pytest.raises(ConfigError, match=r"link\.bind.*without a key.*sbpipe keys"):
        TrainerPort(LinkConfig(bind=bind))


@pytest.mark.parametrize("host", ["10.0.0.1", "127.0.0.1"])
def test_connecting_over_tcp_without_keys_is_refused_at_once(host: str) -> None:
    with pytest.raises(ConfigError, match=r"link\.connect.*RUN_DIR.*sbpipe keys"):
        SelectorPort(Endpoints(f"tcp://{host}:1", f"tcp://{host}:2"), "s1", LinkConfig())


def test_a_name_that_the_trainer_would_drop_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="selector_id"):
        SelectorPort(
            Endpoints("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"), "a name", LinkConfig(), SELECTOR_KEYS
        )


# --- where the trainer is -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bind", "files"),
    [("auto", {"connection.json"}), ("tcp://127.0.0.1:0", {"connection.json", "selector.key"})],
)
def test_a_run_directory_leads_to_its_trainer(
    scene: Scene, tmp_path: Path, bind: str, files: set[str]
) -> None:
    listener = Listener(LinkConfig(bind=bind))
    scene.ports.append(listener.port)
    listener.announce(tmp_path)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == dict.fromkeys(
        files, 0o600
    )
    selector = open_selector_port(LinkConfig(), "s1", locate(str(tmp_path)))
    scene.ports.append(selector)
    introduce(listener.port, selector)
    listener.withdraw()
    assert not list(tmp_path.iterdir())
    assert not list(Path(os.environ[VARIABLE]).iterdir())


def test_a_connection_file_of_another_user_is_not_followed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    write_connection(tmp_path, connection_of(Endpoints("ipc:///x/y", "ipc:///x/y.bulk"), b"s"))
    os.chown(tmp_path / "connection.json", 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to user 65534"):
        locate(str(tmp_path))


def test_the_connection_is_taken_away_only_by_the_trainer_that_wrote_it(tmp_path: Path) -> None:
    old, new = (
        connection_of(Endpoints("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"), session, "")
        for session in (b"old", b"new")
    )
    write_connection(tmp_path, old)
    write_connection(tmp_path, new)
    remove_connection(tmp_path, old)
    assert read_connection(tmp_path) == new
    remove_connection(tmp_path, new)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("connect", "control", "bulk"),
    [
        ("tcp://10.0.0.1:7000", "tcp://10.0.0.1:7000", "tcp://10.0.0.1:7001"),
        ("trainer.local:7000", "tcp://trainer.local:7000", "tcp://trainer.local:7001"),
        ("[::1]:7000", "tcp://[::1]:7000", "tcp://[::1]:7001"),
        ("ipc:///tmp/x", "ipc:///tmp/x", "ipc:///tmp/x.bulk"),
    ],
)
def test_an_address_is_located_as_it_is_written(connect: str, control: str, bulk: str) -> None:
    assert locate(connect).endpoints == (control, bulk)


@pytest.mark.parametrize("connect", ["tcp://nowhere", "tcp://127.0.0.1:0", "tcp://*:5570", "ipc://"])
def test_an_address_that_is_no_place_is_a_config_error(connect: str) -> None:
    with pytest.raises(ConfigError, match=r"link\.connect"):
        locate(connect)


@pytest.mark.parametrize("folder", ["", "runs/later"])
def test_a_run_directory_without_a_trainer_yet_is_worth_another_try(tmp_path: Path, folder: str) -> None:
    with pytest.raises(NotThereYet, match=r"connection\.json is not there \(yet\)"):
        locate(str(tmp_path / folder))


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", "{", '{"control": 1, "bulk": 2}', '{"control": "tcp://a:1", "bulk": "", "pid": "1"}'],
)
def test_a_malformed_connection_file_is_a_config_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "connection.json").write_text(content)
    with pytest.raises(ConfigError, match="is not a connection file"):
        locate(str(tmp_path))


def test_a_trainer_that_listens_everywhere_is_found_by_its_host(tmp_path: Path) -> None:
    everywhere = connection_of(Endpoints("tcp://0.0.0.0:7000", "tcp://0.0.0.0:7001"), b"s", "x.key")
    write_connection(tmp_path, everywhere)
    assert locate(str(tmp_path)).control == "tcp://127.0.0.1:7000"
    text = (tmp_path / "connection.json").read_text()
    (tmp_path / "connection.json").write_text(text.replace(socket.gethostname(), "elsewhere"))
    assert locate(str(tmp_path)).endpoints == ("tcp://elsewhere:7000", "tcp://elsewhere:7001")


def test_a_loopback_trainer_of_another_machine_is_an_error_that_says_so(tmp_path: Path) -> None:
    write_connection(
        tmp_path, connection_of(Endpoints("tcp://127.0.0.1:7000", "tcp://127.0.0.1:7001"), b"s", "")
    )
    text = (tmp_path / "connection.json").read_text()
    (tmp_path / "connection.json").write_text(text.replace(socket.gethostname(), "elsewhere"))
    with pytest.raises(ConfigError, match=r"own machine, elsewhere.*--bind"):
        locate(str(tmp_path))


def test_a_run_directory_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="cannot be written"):
        write_connection(
            tmp_path / "missing", connection_of(Endpoints("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"), b"s", "")
        )
    assert not os.listdir(tmp_path)
