"""Sockets: what arrives, what does not, and that nothing a peer does stops the trainer."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
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
from sbpipe.link.frames import CRC, MAGIC, PREFIX, Buffer, decode, encode
from sbpipe.link.gate import SelectorGate, TrainerGate
from sbpipe.link.opening import open_selector_port, open_trainer_port
from sbpipe.link.ports import OnePeerPort, Port
from sbpipe.link.sockets import SelectorPort, TrainerPort
from sbpipe.records import Lease, RunEnd, Selection, SelectorStats

ANYWHERE = LinkConfig(bind="tcp://127.0.0.1:0")
WELCOME = messages.Welcome("run", "{}", "", 0.5, 4.0)


def hello(name: str) -> messages.Hello:
    return messages.Hello(name, "host", 1, "cpu", "fp32", "0.1.0")


class Scene:
    """Opens ports and raw sockets, and closes them all."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.ports: list[TrainerPort | SelectorPort] = []
        self.raws: list[zmq.Socket[bytes]] = []

    def trainer(self, link: LinkConfig = ANYWHERE) -> TrainerPort:
        port = TrainerPort(link)
        self.ports.append(port)
        return port

    def selector(self, trainer: TrainerPort, link: LinkConfig = ANYWHERE) -> SelectorPort:
        port = SelectorPort(trainer.endpoints, "s1", link)
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
        dealer = self.socket(zmq.DEALER)
        if name:
            dealer.setsockopt(zmq.ROUTING_ID, name)
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


def test_control_comes_before_bulk_that_was_there_first(scene: Scene) -> None:
    trainer, selector = scene.pair()
    for _ in range(5):
        selector.send(messages.Fetch(1, 0, 4))
    selector.send(messages.Heartbeat(1))
    until(lambda: all(sock.poll(10) for sock in (trainer._control, trainer._bulk)))
    came = [message for _, message in trainer.receive(HANG_S)]
    assert came[0] == messages.Heartbeat(1)


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
from sbpipe.link.sockets import SelectorPort
port = SelectorPort(Endpoints(*sys.argv[1:]), "s1", LinkConfig())
port.send(messages.Hello("s1", "host", 1, "cpu", "fp32", "0"))
while True:
    for _ in port.receive(60.0):
        port.send(messages.Heartbeat(1))
"""


def test_a_stopped_process_becomes_unreachable_and_can_come_back(scene: Scene) -> None:
    trainer = scene.trainer(LinkConfig(bind="tcp://127.0.0.1:0", heartbeat_s=0.05, lost_after_s=0.3))
    with subprocess.Popen([sys.executable, "-c", SELECTOR, *trainer.endpoints]) as process:
        try:
            assert isinstance(take(trainer)[1], messages.Hello)
            process.send_signal(signal.SIGSTOP)
            until(lambda: trainer.dropped["unreachable"] > 0 or not trainer.send("s1", WELCOME), trainer)
            process.send_signal(signal.SIGCONT)
            # A welcome may be lost with a connection that broke once more: it is sent until it is answered.
            came: list[object] = []
            while ("s1", messages.Heartbeat(1)) not in came:
                trainer.send("s1", WELCOME)
                came += trainer.receive(0.05)
        finally:
            process.kill()


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


def test_a_selector_that_keeps_beating_finds_the_restarted_trainer(scene: Scene, tmp_path: Path) -> None:
    link = LinkConfig(bind=f"ipc://{tmp_path}/link")
    old, selector = scene.pair(link)
    old.close()
    new = scene.trainer(link)
    # A single message may be lost in the dying connection, so it beats until it is fenced.
    came = until(
        lambda: selector.session == messages.NO_SESSION or not selector.send(messages.Heartbeat(1)),
        new,
        selector,
    )
    assert came == [messages.Fenced()]
    introduce(new, selector)


def test_the_selector_drops_what_another_session_says(scene: Scene) -> None:
    trainer, selector = scene.pair()
    selector.session = b"o" * 16
    trainer.send("s1", messages.Announce(1, 1))
    trainer.send("s1", messages.Goodbye(RunEnd.STOPPED))
    trainer.send("s1", messages.Reject("no"))
    came = until(lambda: selector.dropped["foreign"] == 2, selector)
    assert (came or selector.receive(HANG_S)) == [messages.Reject("no")]


def test_a_selector_that_starts_anew_under_its_old_name_is_heard(scene: Scene) -> None:
    trainer, first = scene.pair()
    for count in range(20):
        first.send(messages.Heartbeat(count))
    until(lambda: trainer._gate._last[("s1", False)] >= 20, trainer)
    second = scene.selector(trainer)
    introduce(trainer, second)
    second.send(messages.Heartbeat(1))
    assert take(trainer) == ("s1", messages.Heartbeat(1))


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"garbage"], "prefix"),
        ([b"x" * 42, b"y" * 1000], "prefix"),
        ([b""] * 50, "prefix"),
        ([*raw_frames(messages.Fenced(), messages.NO_SESSION), b"more"], "arrays"),
        (raw_frames(WELCOME, messages.NO_SESSION), "misplaced"),
        (raw_frames(messages.Fetch(1, 0, 1), messages.NO_SESSION), "misplaced"),
        (raw_frames(hello("another"), messages.NO_SESSION), "misplaced"),
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
    assert trainer.dropped == {reason: 3, "refused": 1}
    assert isinstance(decode(raw.recv_multipart()).message, messages.Reject)
    introduce(trainer, scene.selector(trainer))


def test_a_refused_peer_is_not_heard(scene: Scene) -> None:
    trainer, selector = scene.pair()
    trainer.refuse("s1")
    selector.send(messages.Heartbeat(1))
    selector.send(messages.Fetch(1, 0, 1))
    assert until(lambda: trainer.dropped["refused"] == 2, trainer) == []


def test_an_older_selector_is_told_both_versions(scene: Scene) -> None:
    trainer = scene.trainer()
    raw = scene.raw(trainer.endpoints.control)
    prefix = PREFIX.pack(MAGIC, 0, 3, 1, messages.NO_SESSION, 0, 3)
    raw.send_multipart([prefix + CRC.pack(zlib.crc32(b"old", zlib.crc32(prefix))), b"old"])
    until(lambda: trainer.dropped["protocol"] == 1, trainer)
    answer = decode(raw.recv_multipart()).message
    assert isinstance(answer, messages.Reject)
    assert "the peer speaks 0.3, this side 5.0" in answer.reason


@pytest.mark.parametrize("name", [b"", b"a name", b"\xff\xfe", b"x" * 65])
def test_a_peer_without_a_proper_name_is_dropped_unread(scene: Scene, name: bytes) -> None:
    trainer = scene.trainer()
    scene.raw(trainer.endpoints.control, name).send_multipart(raw_frames(hello("raw"), messages.NO_SESSION))
    assert until(lambda: trainer.dropped["nameless"] == 1, trainer) == []


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
    trainer, selector = scene.pair()
    scores, kept = (
        np.ones(limits.MAX_CANDIDATES, np.float32),
        np.arange(limits.MAX_CANDIDATES, dtype=np.int32),
    )
    selector.send(Selection(1, 0, scores, kept, scores))
    assert isinstance(take(trainer)[1], Selection)
    selector.send(messages.Fetch(1, 0, limits.MAX_CHUNK_BYTES))
    take(trainer)
    data = bytes(limits.MAX_CHUNK_BYTES)
    trainer.send("s1", messages.Chunk(1, 0, len(data), data))
    chunk = take_one(selector)
    assert isinstance(chunk, messages.Chunk)
    assert len(chunk.data) == len(data)


def test_garbage_for_the_selector_is_counted_and_the_next_message_is_read(scene: Scene) -> None:
    router, bulk = scene.socket(zmq.ROUTER), scene.socket(zmq.ROUTER)
    ports = [sock.bind_to_random_port("tcp://127.0.0.1") for sock in (router, bulk)]
    selector = SelectorPort(Endpoints(*(f"tcp://127.0.0.1:{port}" for port in ports)), "s1", LinkConfig())
    scene.ports.append(selector)
    selector.send(hello("s1"))
    assert router.recv_multipart()[0] == b"s1"
    for frames in (
        [b"garbage"],
        raw_frames(hello("s1"), b"t" * 16),
        raw_frames(messages.Gone(1), b"t" * 16),
        raw_frames(WELCOME, b"t" * 16),
    ):
        router.send_multipart([b"s1", *frames])
    assert until(lambda: selector.session == b"t" * 16, selector) == [WELCOME]
    assert selector.dropped == {"prefix": 1, "misplaced": 2}


def test_the_gate_drops_what_it_has_seen_on_the_same_socket() -> None:
    gate, session = TrainerGate(b"t" * 16, dropped := Counter[str]()), b"t" * 16
    first, second = (
        raw_frames(messages.Heartbeat(1), session, 5),
        raw_frames(messages.Heartbeat(2), session, 9),
    )
    assert gate.judge("s1", first, is_bulk=False).message == messages.Heartbeat(1)
    assert gate.judge("s1", second, is_bulk=False).message == messages.Heartbeat(2)
    assert gate.judge("s1", first, is_bulk=False).message is None
    assert gate.judge("s2", first, is_bulk=False).message == messages.Heartbeat(1)
    assert gate.judge(
        "s1", raw_frames(messages.Fetch(1, 0, 1), session, 6), is_bulk=True
    ).message == messages.Fetch(1, 0, 1)
    assert dropped == {"duplicate": 1}


def test_the_selectors_gate_drops_duplicates_until_another_session_begins() -> None:
    gate = SelectorGate(dropped := Counter[str]())
    assert gate.judge(raw_frames(WELCOME, b"a" * 16, 5), is_bulk=False) == WELCOME
    assert gate.judge(raw_frames(messages.Announce(1, 1), b"a" * 16, 5), is_bulk=False) is None
    assert gate.judge(raw_frames(WELCOME, b"b" * 16, 0), is_bulk=False) == WELCOME
    assert gate.judge(raw_frames(messages.Announce(1, 1), b"b" * 16, 1), is_bulk=False) == messages.Announce(
        1, 1
    )
    assert dropped == {"duplicate": 1}


def test_invented_names_do_not_fill_the_memory() -> None:
    gate = TrainerGate(b"t" * 16, Counter())
    for number in range(limits.MAX_PEERS + 100):
        gate.judge(f"s{number}", [b"garbage"], is_bulk=False)
    assert len(gate._strikes) == limits.MAX_PEERS


# --- opening --------------------------------------------------------------------------------------


def test_port_zero_gives_a_control_port_and_the_next_one(scene: Scene) -> None:
    control, bulk = (int(endpoint.rpartition(":")[2]) for endpoint in scene.trainer().endpoints)
    assert control > 0
    assert bulk == control + 1


def test_a_taken_port_names_the_way_out(scene: Scene) -> None:
    taken = scene.trainer().endpoints.control
    with pytest.raises(ConfigError, match=r"link\.bind.*listens there already.*--bind tcp://127\.0\.0\.1:0"):
        TrainerPort(LinkConfig(bind=taken))


def test_a_taken_bulk_port_is_the_one_that_is_named(scene: Scene) -> None:
    bulk = scene.trainer().endpoints.bulk
    below = int(bulk.rpartition(":")[2]) - 1
    other = f"tcp://127.0.0.2:{below}"
    with (
        socket.create_server(("127.0.0.2", below + 1)),
        pytest.raises(ConfigError, match=rf"127\.0\.0\.2:{below + 1}: something listens"),
    ):
        TrainerPort(LinkConfig(bind=other))
    scene.trainer(LinkConfig(bind=other))


def test_a_local_socket_is_not_taken_from_a_living_trainer_but_from_a_dead_one(
    scene: Scene, tmp_path: Path
) -> None:
    link = LinkConfig(bind=f"ipc://{tmp_path}/link")
    first = scene.trainer(link)
    with pytest.raises(ConfigError, match="listens there already"):
        TrainerPort(link)
    first.close()
    assert (tmp_path / "link").is_socket()
    scene.pair(link)


def test_a_file_that_is_no_socket_is_not_replaced_by_one(tmp_path: Path) -> None:
    (tmp_path / "link.bulk").write_text("precious")
    with pytest.raises(ConfigError, match=r"link\.bulk: it is not a socket"):
        TrainerPort(LinkConfig(bind=f"ipc://{tmp_path}/link"))
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
        ("ipc:///nowhere/at/all", "folder does not exist"),
    ],
)
def test_a_malformed_address_is_a_config_error(bind: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"link\.bind.*{says}"):
        TrainerPort(LinkConfig(bind=bind))


@pytest.mark.parametrize(
    "bind",
    [
        "tcp://0.0.0.0:0",
        "tcp://*:0",
        "tcp://[::]:0",
        "tcp://192.168.1.2:5570",
        "tcp://eth0:5570",
        "10.0.0.1:5570",
    ],
)
def test_an_address_others_can_reach_refuses_to_open_without_keys(bind: str) -> None:
    with pytest.raises(ConfigError, match=r"link\.bind.*other machines.*sbpipe keys"):
        TrainerPort(LinkConfig(bind=bind))


def test_connecting_to_another_machine_without_keys_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"link\.connect.*sbpipe keys"):
        SelectorPort(Endpoints("tcp://10.0.0.1:1", "tcp://10.0.0.1:2"), "s1", LinkConfig())


def test_a_name_that_the_trainer_would_drop_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="selector_id"):
        SelectorPort(Endpoints("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"), "a name", LinkConfig())


# --- where the trainer is -------------------------------------------------------------------------


def test_a_run_directory_leads_to_its_trainer(scene: Scene, tmp_path: Path) -> None:
    trainer = open_trainer_port(ANYWHERE)
    scene.ports.append(trainer)
    path = write_connection(tmp_path, connection_of(trainer.endpoints, trainer.session, ""))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["connection.json"]
    selector = open_selector_port(LinkConfig(connect=str(tmp_path)), "s1")
    scene.ports.append(selector)
    introduce(trainer, selector)


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
    everywhere = connection_of(Endpoints("tcp://0.0.0.0:7000", "tcp://0.0.0.0:7001"), b"s", "keys")
    write_connection(tmp_path, everywhere)
    assert locate(str(tmp_path)).control == "tcp://127.0.0.1:7000"
    assert Path(everywhere.keys).is_absolute()
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
