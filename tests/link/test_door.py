"""The door of the trainer under attack: by strangers, by other users, and by who holds a key."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.curve_peer import CurvePeer
from support.runs import HANG_S

from sbpipe.config import LinkConfig
from sbpipe.errors import ConfigError
from sbpipe.link import limits
from sbpipe.link.addresses import Endpoints
from sbpipe.link.connection import read_connection
from sbpipe.link.doorkeeper import Doorkeeper
from sbpipe.link.keyring import Keyring
from sbpipe.link.keys import new_keys
from sbpipe.link.messages import Heartbeat, Hello, Welcome
from sbpipe.link.notices import Notice, live_runs
from sbpipe.link.opening import Listener
from sbpipe.link.private import VARIABLE, fault_of, make_folder
from sbpipe.link.selector_port import SelectorPort
from sbpipe.link.trainer_port import TrainerPort
from sbpipe.records import Lease
from sbpipe.runs.directory import RunDir

TRAINER, SELECTOR = new_keys()
TCP = LinkConfig(bind="tcp://127.0.0.1:0")
WELCOME = Welcome("{}", "", 0.5, 4.0)
NOBODY = 65534


def hello(name: str) -> Hello:
    return Hello(name, "host", 1, "cpu", "fp32", "0")


@pytest.fixture
def trainer() -> Iterator[TrainerPort]:
    port = TrainerPort(TCP, Keyring(TRAINER))
    yield port
    port.close()


def gets_in(trainer: TrainerPort, name: str = "honest") -> SelectorPort:
    """A selector with the right key, once it is welcomed."""
    selector = SelectorPort(trainer.endpoints, name, TCP, SELECTOR)
    came: list[object] = []
    while (name, hello(name)) not in came:
        selector.send(hello(name))
        came += [*trainer.receive(0.1), *selector.receive(0.0)]
    trainer.send(name, WELCOME)
    wait(lambda: selector.session == trainer.session, lambda: selector.receive(0.1))
    return selector


def wait(condition: Callable[[], object], do: Callable[[], object]) -> None:
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline
        do()


# --- who holds a key ------------------------------------------------------------------------------

VICTIM = """
import sys
from sbpipe.config import LinkConfig
from sbpipe.link.binding import Keys
from sbpipe.link.keyring import Keyring
from sbpipe.link.messages import Hello, Welcome
from sbpipe.link.trainer_port import TrainerPort
port = TrainerPort(LinkConfig(bind="tcp://127.0.0.1:0"), Keyring(Keys(*sys.argv[1:])))
print(*port.endpoints, flush=True)
while True:
    for peer, message in port.receive(0.1):
        if isinstance(message, Hello):
            port.send(peer, Welcome("{}", "", 0.5, 4.0))
"""


def test_floods_that_end_in_a_reset_do_not_end_the_trainer() -> None:
    # In a process of its own: what is tested for is an abort.
    command = [sys.executable, "-c", VICTIM, TRAINER.public, TRAINER.secret, TRAINER.peer]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        endpoints = Endpoints(*victim.stdout.readline().split())

        def attack() -> None:
            for _ in range(8):
                # Several connections of one route: all but one of them are turned away or replaced.
                with contextlib.suppress(OSError):
                    peer = CurvePeer(endpoints.control, SELECTOR, b"one route")
                    try:
                        peer.socket.sendall(b"".join(peer.frame(b"x", more=k % 2 == 0) for k in range(600)))
                    finally:
                        peer.reset()

        attackers = [threading.Thread(target=attack) for _ in range(6)]
        try:
            for attacker in attackers:
                attacker.start()
            for attacker in attackers:
                attacker.join()
            selector = SelectorPort(endpoints, "honest", TCP, SELECTOR)
            wait(
                lambda: selector.session != bytes(16) or victim.poll() is not None,
                lambda: [selector.send(hello("honest")), selector.receive(0.2)],
            )
            selector.close()
            assert victim.poll() is None
        finally:
            victim.kill()


def test_a_message_that_never_ends_is_cut_off(trainer: TrainerPort) -> None:
    selector = gets_in(trainer)
    peer = CurvePeerInBackground(trainer)
    # A first message that is complete: it is no stranger any more, and only what comes then counts.
    peer.get().socket.sendall(peer.get().frame(b"complete", more=False))
    wait(lambda: trainer.dropped["prefix"], lambda: trainer.receive(0.01))
    frame = bytes(32 << 10)
    num_bytes = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while not trainer.dropped["cut"]:
        # It comes no further than a fraction of what it would like to send.
        assert num_bytes < 32 << 20
        with contextlib.suppress(OSError):
            peer.get().socket.sendall(peer.get().frame(frame, more=True))
            num_bytes += len(frame)
        trainer.receive(0.01)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # KiB
    selector.send(Heartbeat(1))
    came: list[object] = []
    wait(lambda: came, lambda: came.extend(trainer.receive(0.1)))
    assert came == [("honest", Heartbeat(1))]
    peer.get().socket.close()
    selector.close()


class CurvePeerInBackground:
    """The handshake needs the trainer to answer, which this thread does meanwhile."""

    def __init__(self, trainer: TrainerPort, route: bytes = b"liar") -> None:
        self._found: list[CurvePeer] = []
        thread = threading.Thread(
            target=lambda: self._found.append(CurvePeer(trainer.endpoints.control, SELECTOR, route))
        )
        thread.start()
        wait(lambda: self._found, lambda: trainer.receive(0.01))
        thread.join()

    def get(self) -> CurvePeer:
        return self._found[0]


def test_a_granted_lease_allows_an_answer_of_its_size(trainer: TrainerPort) -> None:
    selector = gets_in(trainer)
    lease = Lease(1, 0, 0, limits.MAX_CANDIDATES, enough=1, most=1, version=0)
    trainer.send("honest", lease)
    assert trainer._doorkeeper is not None
    (allowed,) = trainer._doorkeeper._allowances.values()
    assert allowed > 3 * 4 * limits.MAX_CANDIDATES + 4 * limits.MAX_CLASSES
    selector.close()


# --- strangers ------------------------------------------------------------------------------------


def accepted(trainer: TrainerPort) -> int:
    """Connections that the trainer holds open, as the kernel counts them."""
    ports = {int(endpoint.rpartition(":")[2]) for endpoint in trainer.endpoints}
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    local = [line.split()[1:4] for line in lines]
    return sum(int(at.rpartition(":")[2], 16) in ports and state == "01" for at, _, state in local)


def test_hundreds_of_connections_leave_room_for_the_one_with_a_key(trainer: TrainerPort) -> None:
    port = int(trainer.endpoints.control.rpartition(":")[2])
    with contextlib.ExitStack() as sockets:
        for number in range(400):
            with contextlib.suppress(OSError):
                sockets.enter_context(socket.create_connection(("127.0.0.1", port)))
            if number % 100 == 0:
                trainer.receive(0.0)
        wait(lambda: accepted(trainer) <= limits.MAX_STRANGERS, lambda: trainer.receive(0.05))
        gets_in(trainer).close()


def test_who_speaks_without_a_key_is_never_heard(trainer: TrainerPort) -> None:
    port = int(trainer.endpoints.control.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as plain:
        ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
        plain.sendall(b"\xff" + bytes(8) + b"\x7f\x03\0" + b"NULL".ljust(20, b"\0") + bytes(32) + ready)
        # It may be turned away before it has finished.
        with contextlib.suppress(OSError):
            plain.sendall(b"\x01\x03abc\x00\x03def")
        wait(lambda: trainer.dropped["handshake"], lambda: trainer.receive(0.05))
    assert set(trainer.dropped) == {"handshake"}


def test_connections_that_fall_silent_give_their_descriptors_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # Soon, so that the test is short: before and after the handshake.
    monkeypatch.setattr(limits, "HANDSHAKE_MS", 300)
    monkeypatch.setattr("sbpipe.link.doorkeeper.STRANGER_S", 0.6)
    trainer = TrainerPort(TCP, Keyring(TRAINER))
    port = int(trainer.endpoints.control.rpartition(":")[2])
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.ExitStack() as ours:
        for _ in range(5):
            ours.enter_context(socket.create_connection(("127.0.0.1", port)))
        for number in range(2):
            peer = CurvePeerInBackground(trainer, b"silent %d" % number)
            ours.enter_context(peer.get().socket)
        # Seven are this test's own ends, which stay open.
        wait(lambda: len(os.listdir("/proc/self/fd")) == before + 7, lambda: trainer.receive(0.05))
        assert trainer.dropped["cut"] >= 2
        gets_in(trainer).close()
    trainer.close()


# --- the doorkeeper alone, over plain sockets -----------------------------------------------------


@contextlib.contextmanager
def lobby() -> Iterator[tuple[Doorkeeper, Callable[[], tuple[socket.socket, socket.socket]]]]:
    """A doorkeeper, and what makes a pair of ends of one of its connections: the guest's, the accepted."""
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as open_ends:

        def connect() -> tuple[socket.socket, socket.socket]:
            guest = open_ends.enter_context(socket.create_connection(server.getsockname()))
            return guest, open_ends.enter_context(server.accept()[0])

        yield Doorkeeper({server.getsockname()[1]}), connect


def is_cut(guest: socket.socket) -> bool:
    guest.settimeout(HANG_S)
    with contextlib.suppress(ConnectionResetError):
        return guest.recv(1) == b""
    return True


def test_bytes_count_until_a_message_is_complete() -> None:
    with lobby() as (doorkeeper, connect):
        guest, ours = connect()
        for step in range(3):
            guest.sendall(bytes(limits.MAX_UNFINISHED_BYTES - 1))
            read(ours, limits.MAX_UNFINISHED_BYTES - 1)
            doorkeeper.delivered(ours.fileno())
            assert doorkeeper.look(float(step)) == {}
        guest.sendall(bytes(limits.MAX_UNFINISHED_BYTES + 1))
        read(ours, limits.MAX_UNFINISHED_BYTES + 1)
        assert "without a complete message" in doorkeeper.look(4.0)[ours.fileno()]
        assert is_cut(guest)


def read(connection: socket.socket, count: int) -> None:
    while count:
        count -= len(connection.recv(count))


def test_who_may_send_more_may_and_who_says_nothing_is_cut() -> None:
    with lobby() as (doorkeeper, connect):
        (guest, ours), (silent, other) = connect(), connect()
        doorkeeper.look(0.0)
        doorkeeper.delivered(ours.fileno())
        doorkeeper.allow(ours.fileno(), 1 << 20)
        doorkeeper.look(1.0)
        guest.sendall(bytes(1 << 20))
        read(ours, 1 << 20)
        assert doorkeeper.look(2.0) == {}
        assert list(doorkeeper.look(limits.STRANGER_S + 1.0)) == [other.fileno()]
        assert is_cut(silent)
        doorkeeper.dismiss(ours.fileno())
        assert list(doorkeeper.look(60.0)) == [ours.fileno()]


def test_of_too_many_strangers_the_oldest_go_and_no_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbpipe.link.doorkeeper.MAX_STRANGERS", 2)
    with lobby() as (doorkeeper, connect):
        ends, cut = list[int](), list[int]()
        for number in range(4):
            ends.append(connect()[1].fileno())
            doorkeeper.delivered(ends[0])
            cut += doorkeeper.look(float(number))
        assert cut == [ends[1]]


def test_a_low_limit_of_open_files_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        Doorkeeper(set())
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(before[1], limits.MAX_FILES)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_doorkeeper_leaves_no_descriptor_open_and_touches_no_other_socket() -> None:
    with lobby() as (doorkeeper, connect), socket.create_server(("127.0.0.1", 0)) as other:
        connect()
        mine = socket.create_connection(other.getsockname())
        theirs, _ = other.accept()
        before = os.listdir("/proc/self/fd")
        for step in range(5):
            doorkeeper.look(float(step))
        assert len(os.listdir("/proc/self/fd")) == len(before)
        assert theirs.fileno() not in doorkeeper._connections
        mine.close()
        theirs.close()


# --- other users of this host ---------------------------------------------------------------------


@contextlib.contextmanager
def another_user() -> Iterator[None]:
    """What the kernel lets user nobody do."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_another_user_cannot_reach_the_socket_of_a_run_nor_its_keys(tmp_path: Path) -> None:
    listener, tcp = Listener(LinkConfig()), Listener(TCP)
    run_path = RunDir.open(tmp_path / "run", resume=False, overwrite=False)
    tcp.announce(run_path.path)
    path = listener.port.endpoints.control.removeprefix("ipc://")
    try:
        with socket.socket(socket.AF_UNIX) as stranger, another_user():
            with pytest.raises(PermissionError):
                stranger.connect(path)
            with pytest.raises(PermissionError):
                (run_path.path / "selector.key").read_bytes()
        with socket.socket(socket.AF_UNIX) as owner:
            owner.connect(path)
    finally:
        for one in (listener, tcp):
            one.port.close()
            one.withdraw()
        run_path.close()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        ("mode", "others may reach"),
        ("link", "is not a folder"),
        ("owner", "belongs to user"),
        ("file", "not a folder"),
    ],
)
def test_a_folder_that_is_not_private_is_not_used(
    tmp_path: Path, spoil: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sockets"
    if spoil == "link":
        folder.symlink_to(tmp_path)
    elif spoil == "file":
        folder.touch()
    else:
        folder.mkdir(mode=0o700)
    if spoil == "mode":
        folder.chmod(0o711)
    if spoil == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(folder, NOBODY, NOBODY)
    assert says in fault_of(folder)
    monkeypatch.setenv(VARIABLE, str(folder))
    with pytest.raises(ConfigError, match=rf"link\.bind.*{says}"):
        make_folder()


def test_a_squatted_folder_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "squatted").mkdir(mode=0o777)
    folders = [tmp_path / "squatted", tmp_path / "sbpipe"]
    (tmp_path / "squatted").chmod(0o777)
    monkeypatch.setattr("sbpipe.link.private.candidates", lambda: folders)
    assert make_folder() == tmp_path / "sbpipe"
    assert fault_of(tmp_path / "sbpipe") == ""


# --- who is at work -------------------------------------------------------------------------------


def test_a_notice_is_there_as_long_as_its_trainer(tmp_path: Path) -> None:
    notice = Notice(tmp_path)
    assert live_runs() == [tmp_path]
    notice.remove()
    assert live_runs() == []


def test_the_notice_of_a_killed_trainer_is_removed(tmp_path: Path) -> None:
    script = (
        "import os, pathlib; from sbpipe.link.notices import Notice; "
        "notice = Notice(pathlib.Path('/gone')); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert list(Path(os.environ[VARIABLE]).glob("*.run"))
    assert live_runs() == []
    assert not list(Path(os.environ[VARIABLE]).glob("*.run"))


def test_a_tcp_run_without_keys_makes_its_own_and_leaves_none_behind(tmp_path: Path) -> None:
    listener = Listener(TCP)
    listener.announce(tmp_path)
    connection = read_connection(tmp_path)
    assert connection.keys == str(tmp_path / "selector.key")
    assert Path(connection.keys).stat().st_mode & 0o777 == 0o600
    listener.port.close()
    listener.withdraw()
    assert list(tmp_path.iterdir()) == []
