"""Keys: files only their owner can read, and a wire only their holders can use."""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.runs import HANG_S

from sbpipe.config import LinkConfig
from sbpipe.errors import ConfigError
from sbpipe.link.addresses import Endpoints
from sbpipe.link.binding import Keys
from sbpipe.link.connection import locate
from sbpipe.link.keyring import Keyring
from sbpipe.link.keys import (
    add_selector,
    allowed_names,
    load_keys,
    make_keys,
    revoke_selector,
    rotate_trainer,
)
from sbpipe.link.limits import MAX_CLOSED
from sbpipe.link.messages import Chunk, Departed, Fetch, Heartbeat, Hello, Message, Welcome
from sbpipe.link.opening import Listener, open_selector_port
from sbpipe.link.selector_port import SelectorPort
from sbpipe.link.sockets import new_key_pair, public_key_of
from sbpipe.link.trainer_port import TrainerPort
from sbpipe.selector.finder import Finder


def hello(name: str) -> Hello:
    return Hello(name, "host", 1, "cpu", "fp32", "0.1.0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def opened() -> Iterator[list[TrainerPort | SelectorPort]]:
    ports: list[TrainerPort | SelectorPort] = []
    yield ports
    for port in ports:
        port.close()


def test_keys_are_made_for_both_sides_and_only_the_owner_can_read_them(folder: Path) -> None:
    trainer, selector = load_keys(folder, "trainer"), load_keys(folder, "selector")
    assert (trainer.public, selector.public) == (selector.peer, trainer.peer)
    assert len({trainer.secret, selector.secret, trainer.public, selector.public}) == 4
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.rglob("*")} == {
        "trainer.key": 0o600,
        "selector.key": 0o600,
        "allowed": 0o700,
        "selector.pub": 0o600,
    }


def test_neither_file_holds_the_secret_of_the_other_side(folder: Path) -> None:
    assert load_keys(folder, "trainer").secret not in (folder / "selector.key").read_text()
    assert load_keys(folder, "selector").secret not in (folder / "trainer.key").read_text()


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        paths = make_keys(tmp_path)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o600, 0o600]


@pytest.mark.parametrize("name", ["trainer.key", "selector.key"])
def test_keys_are_never_written_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(ConfigError, match=rf"link\.keys.*{name} is there already"):
        make_keys(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "precious")]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"link\.keys.*cannot be written"):
        make_keys(tmp_path / "file" / "keys")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o601])
def test_a_key_file_that_others_may_touch_is_refused(folder: Path, mode: int) -> None:
    (folder / "trainer.key").chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_keys(folder, "trainer")


def test_missing_keys_name_the_command_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.key cannot be read.*sbpipe keys"):
        load_keys(tmp_path, "trainer")


def changed(table: dict[str, str], **changes: str) -> bytes:
    return json.dumps(table | changes).encode()


@pytest.mark.parametrize(
    "spoil", ["empty", "list", "binary", "deep", "short", "letters", "field", "role", "pair", "huge"]
)
def test_a_malformed_key_file_is_refused(folder: Path, spoil: str) -> None:
    path = folder / "trainer.key"
    table: dict[str, str] = json.loads(path.read_bytes())
    contents = {
        "empty": b"",
        "list": b"[]",
        "binary": os.urandom(200),
        "deep": b"[" * 4000,
        "short": changed(table, secret="abc"),
        "letters": changed(table, peer="~" * 40),
        "field": changed(table, comment="mine"),
        "role": changed(table, role="selector"),
        "pair": changed(table, public=new_key_pair()[0]),
        "huge": changed(table) + b" " * 10_000,
    }
    path.write_bytes(contents[spoil])
    with pytest.raises(ConfigError, match=r"trainer\.key is not a key file of the trainer"):
        load_keys(folder, "trainer")


def test_the_public_key_follows_from_the_secret_one() -> None:
    public, secret = new_key_pair()
    assert public_key_of(secret) == public


def test_with_keys_both_pairs_work_and_the_run_directory_tells_where_the_keys_are(
    folder: Path, tmp_path: Path, opened: list[TrainerPort | SelectorPort]
) -> None:
    listener = Listener(LinkConfig(bind="tcp://0.0.0.0:0", keys=str(folder)))
    trainer = listener.port
    listener.announce(tmp_path)
    selector = open_selector_port(LinkConfig(), "s1", locate(str(tmp_path)))
    listener.withdraw()
    opened += [trainer, selector]
    selector.send(hello("s1"))
    assert trainer.receive(HANG_S) == [("s1", hello("s1"))]
    trainer.send("s1", Welcome("{}", "", 0.5, 4.0))
    assert len(selector.receive(HANG_S)) == 1
    selector.send(Fetch(1, 0, 4))
    assert trainer.receive(HANG_S) == [("s1", Fetch(1, 0, 4))]
    data = np.arange(2 << 20, dtype=np.uint8).tobytes()
    trainer.send("s1", Chunk(1, 0, len(data), data))
    assert selector.receive(HANG_S) == [Chunk(1, 0, len(data), data)]


def stranger(kind: str, right: Keys) -> Keys:
    public, secret = new_key_pair()
    strangers = {
        "unknown key": Keys(public, secret, right.peer),
        "another trainer": Keys(right.public, right.secret, public),
    }
    return strangers[kind]


@pytest.mark.parametrize("kind", ["unknown key", "another trainer"])
def test_without_the_right_keys_nothing_gets_in_and_both_sides_say_so(
    folder: Path, kind: str, opened: list[TrainerPort | SelectorPort], caplog: pytest.LogCaptureFixture
) -> None:
    trainer = TrainerPort(LinkConfig(bind="tcp://127.0.0.1:0"), Keyring(load_keys(folder, "trainer"), folder))
    selector = SelectorPort(
        trainer.endpoints, "s1", LinkConfig(), stranger(kind, load_keys(folder, "selector"))
    )
    opened += [trainer, selector]
    selector.send(hello("s1"))
    assert until(lambda: selector.refusal, trainer, selector) == []
    said = {
        "unknown key": ("refused this key", "unknown key was turned away, from 127.0.0.1"),
        "another trainer": ("is not the trainer of this key", "does not know the key of this trainer"),
    }[kind]
    assert said[0] in selector.refusal
    assert [record.message for record in caplog.records if said[1] in record.message] == caplog.messages
    assert len(caplog.messages) == 1


def test_a_forwarded_port_whose_trainer_is_away_is_waited_for_not_taken_for_another_trainer(
    folder: Path, opened: list[TrainerPort | SelectorPort]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as forwarder:
        address = f"tcp://127.0.0.1:{forwarder.getsockname()[1]}"
        closing = threading.Thread(target=close_connections, args=(forwarder,), daemon=True)
        closing.start()
        selector = SelectorPort(
            Endpoints(address, address), "s1", LinkConfig(), load_keys(folder, "selector")
        )
        opened += [selector]
        until(lambda: selector.dropped["handshake"] > MAX_CLOSED, selector)
        assert selector.refusal == ""
        forwarder.shutdown(socket.SHUT_RDWR)
        closing.join(HANG_S)


def close_connections(listener: socket.socket) -> None:
    """What a port forwarder does while nobody is behind it."""
    with contextlib.suppress(OSError):
        while True:
            listener.accept()[0].close()


def test_a_closed_port_leaves_no_doorman_behind(folder: Path) -> None:
    keyring = Keyring(load_keys(folder, "trainer"))
    first = TrainerPort(LinkConfig(bind="tcp://127.0.0.1:0"), keyring)
    first.close()
    again = TrainerPort(LinkConfig(bind=first.endpoints.control), keyring)
    again.close()


def until(condition: Callable[[], object], *ports: TrainerPort | SelectorPort) -> list[object]:
    came: list[object] = []
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, [port.dropped for port in ports]
        for port in ports:
            came += port.receive(0.01)
    return came


# --- several keys, while a trainer is at work -----------------------------------------------------


def connected(trainer: TrainerPort, key: Path, name: str) -> SelectorPort:
    selector = SelectorPort(trainer.endpoints, name, LinkConfig(), load_keys(key, "selector"))
    came: list[object] = []
    while (name, hello(name)) not in came:
        selector.send(hello(name))
        came += [*trainer.receive(0.1), *selector.receive(0.0)]
    trainer.send(name, Welcome("{}", "", 0.5, 4.0))
    until(lambda: selector.session == trainer.session, selector)
    return selector


def test_a_key_can_be_added_and_revoked_while_the_trainer_is_at_work(
    folder: Path, opened: list[TrainerPort | SelectorPort]
) -> None:
    trainer = TrainerPort(LinkConfig(bind="tcp://127.0.0.1:0"), Keyring(load_keys(folder, "trainer"), folder))
    opened += [trainer]
    first = connected(trainer, folder, "first")
    stolen_file = add_selector(folder, "gpu2").read_bytes()
    second = connected(trainer, folder / "gpu2.key", "second")
    opened += [first, second]
    revoke_selector(folder, "gpu2")
    second.send(Heartbeat(1))
    second.send(Heartbeat(2))
    ended: list[tuple[str, Message]] = []
    while not any(isinstance(message, Departed) for _, message in ended):
        ended += trainer.receive(HANG_S)
    assert ended[-1][0] == "second"
    assert "revoked" in ended[-1][1].reason  # type: ignore[union-attr]
    # Its connection is cut, and it does not get in again.
    assert until(lambda: second.refusal, trainer, second) == []
    first.send(Heartbeat(3))
    assert trainer.receive(HANG_S) == [("first", Heartbeat(3))]
    (folder / "gpu2.key").write_bytes(stolen_file)
    (folder / "gpu2.key").chmod(0o600)
    late = SelectorPort(trainer.endpoints, "late", LinkConfig(), load_keys(folder / "gpu2.key", "selector"))
    opened.append(late)
    late.send(hello("late"))
    assert until(lambda: late.refusal, trainer, late) == []


def test_keys_are_listed_added_and_revoked_by_name(folder: Path) -> None:
    assert allowed_names(folder) == ["selector"]
    add_selector(folder, "gpu2")
    assert allowed_names(folder) == ["gpu2", "selector"]
    with pytest.raises(ConfigError, match="there already"):
        add_selector(folder, "gpu2")
    with pytest.raises(ConfigError, match="not trainer"):
        add_selector(folder, "trainer")
    with pytest.raises(ConfigError, match="must be"):
        add_selector(folder, "../out")
    revoke_selector(folder, "selector")
    assert allowed_names(folder) == ["gpu2"]
    with pytest.raises(ConfigError, match=r"is not let in.*gpu2"):
        revoke_selector(folder, "selector")


def without_permissions(folder: Path) -> None:
    """As an older version made it."""
    for path in (folder / "allowed").iterdir():
        path.unlink()
    (folder / "allowed").rmdir()


def test_a_folder_of_an_older_version_works_and_its_one_key_can_be_revoked(folder: Path) -> None:
    without_permissions(folder)
    keyring = Keyring(load_keys(folder, "trainer"), folder)
    assert list(keyring.allowed.values()) == ["selector"]
    revoke_selector(folder, "selector")
    assert keyring.refresh()
    assert keyring.allowed == {}
    assert Keyring(load_keys(folder, "trainer"), folder).allowed == {}


def test_a_folder_of_permissions_that_goes_bad_lets_nobody_in(folder: Path) -> None:
    keyring = Keyring(load_keys(folder, "trainer"), folder, own="o" * 40)
    assert not keyring.refresh() or keyring.allowed
    (folder / "allowed").chmod(0o777)
    os.utime(folder / "allowed", ns=(1, 1))
    assert keyring.refresh()
    assert list(keyring.allowed) == ["o" * 40]
    with pytest.raises(ConfigError, match="others may write"):
        Keyring(load_keys(folder, "trainer"), folder)


def test_a_file_that_is_no_public_key_lets_nobody_in(folder: Path) -> None:
    (folder / "allowed" / "bad.pub").write_text("garbage")
    assert list(Keyring(load_keys(folder, "trainer"), folder).allowed.values()) == ["selector"]


# --- another key of the trainer -------------------------------------------------------------------


@pytest.mark.slow  # it waits for connections to be refused and made anew
def test_the_trainers_own_key_can_be_rotated_while_it_is_at_work(
    folder: Path, tmp_path: Path, opened: list[TrainerPort | SelectorPort]
) -> None:
    link = LinkConfig(bind="tcp://127.0.0.1:0", keys=str(folder))
    listener = Listener(link)
    trainer, run = listener.port, tmp_path / "run"
    run.mkdir()
    listener.announce(run)
    before = load_keys(folder, "selector")
    stays = connected(trainer, folder, "stays")
    opened += [trainer, stays]
    assert rotate_trainer(folder) == [folder / "selector.key"]
    assert load_keys(folder, "selector").peer == load_keys(folder, "trainer").public != before.peer
    until(lambda: load_keys(run, "selector").peer != before.peer, trainer, stays)
    # Who was in comes back by itself; who comes with the new file, or by the run directory, gets in.
    came: list[object] = []
    while ("stays", hello("stays")) not in came:
        stays.send(hello("stays"))
        came += [*trainer.receive(0.1), *stays.receive(0.0)]
    assert stays.refusal == ""
    opened += [connected(trainer, folder, "comes"), connected(trainer, run / "selector.key", "finds")]
    # Who still takes the old key for the trainer's does not.
    late = SelectorPort(trainer.endpoints, "late", LinkConfig(), before)
    opened.append(late)
    assert until(lambda: late.refusal, trainer, late) == []
    assert "has another one by now" in late.refusal
    listener.withdraw()


def test_a_selector_that_is_cut_off_comes_back_with_the_new_key_file(
    folder: Path, tmp_path: Path, opened: list[TrainerPort | SelectorPort]
) -> None:
    listener = Listener(LinkConfig(bind="tcp://127.0.0.1:0", keys=str(folder)))
    trainer = listener.port
    opened.append(trainer)
    link = LinkConfig(connect=trainer.endpoints.control, keys=str(folder / "selector.key"))
    finder = Finder(link, "s1")
    port = finder.find(threading.Event())
    assert isinstance(port, SelectorPort)
    opened.append(port)
    assert finder.moved() is None
    rotate_trainer(folder)
    again = finder.moved()
    assert isinstance(again, SelectorPort)
    opened.append(again)
    came: list[object] = []
    while ("s1", hello("s1")) not in came:
        again.send(hello("s1"))
        came += [*trainer.receive(0.1), *again.receive(0.0)]
    assert finder.moved() is None


def test_a_damaged_key_file_leaves_the_trainer_the_key_it_has(
    folder: Path, opened: list[TrainerPort | SelectorPort], caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Listener(LinkConfig(bind="tcp://127.0.0.1:0", keys=str(folder))).port
    opened.append(trainer)
    (folder / "trainer.key").write_text("garbage")
    until(lambda: "goes on with the key it has" in caplog.text, trainer)
    opened.append(connected(trainer, folder, "first"))
