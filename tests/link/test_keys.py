"""Keys: files only their owner can read, and a wire only their holders can use."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.runs import HANG_S

from sbpipe.config import LinkConfig
from sbpipe.errors import ConfigError
from sbpipe.link.binding import Keys
from sbpipe.link.connection import connection_of, write_connection
from sbpipe.link.keys import load_keys, make_keys
from sbpipe.link.messages import Chunk, Fetch, Hello, Welcome
from sbpipe.link.opening import open_selector_port, open_trainer_port
from sbpipe.link.sockets import SelectorPort, TrainerPort, new_key_pair, public_key_of


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
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        "trainer.key": 0o600,
        "selector.key": 0o600,
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
    trainer = open_trainer_port(LinkConfig(bind="tcp://0.0.0.0:0", keys=str(folder)))
    write_connection(tmp_path, connection_of(trainer.endpoints, trainer.session, str(folder)))
    selector = open_selector_port(LinkConfig(connect=str(tmp_path)), "s1")
    opened += [trainer, selector]
    selector.send(hello("s1"))
    assert trainer.receive(HANG_S) == [("s1", hello("s1"))]
    trainer.send("s1", Welcome("run", "{}", "", 0.5, 4.0))
    assert len(selector.receive(HANG_S)) == 1
    selector.send(Fetch(1, 0, 4))
    assert trainer.receive(HANG_S) == [("s1", Fetch(1, 0, 4))]
    data = np.arange(2 << 20, dtype=np.uint8).tobytes()
    trainer.send("s1", Chunk(1, 0, len(data), data))
    assert selector.receive(HANG_S) == [Chunk(1, 0, len(data), data)]


def stranger(kind: str, right: Keys) -> Keys | None:
    public, secret = new_key_pair()
    strangers = {
        "no keys": None,
        "unknown key": Keys(public, secret, right.peer),
        "another trainer": Keys(right.public, right.secret, public),
    }
    return strangers[kind]


@pytest.mark.parametrize("kind", ["no keys", "unknown key", "another trainer"])
def test_without_the_right_keys_nothing_gets_in_and_both_sides_can_tell(
    folder: Path, kind: str, opened: list[TrainerPort | SelectorPort]
) -> None:
    trainer = TrainerPort(LinkConfig(bind="tcp://127.0.0.1:0"), load_keys(folder, "trainer"))
    selector = SelectorPort(
        trainer.endpoints, "s1", LinkConfig(), stranger(kind, load_keys(folder, "selector"))
    )
    opened += [trainer, selector]
    selector.send(hello("s1"))
    deadline = time.monotonic() + HANG_S
    while not selector.dropped["handshake"] or (kind == "unknown key" and not trainer.dropped["key"]):
        assert time.monotonic() < deadline
        assert trainer.receive(0.01) == []
        assert selector.receive(0.01) == []


def test_a_closed_port_leaves_no_doorman_behind(folder: Path) -> None:
    keys = load_keys(folder, "trainer")
    first = TrainerPort(LinkConfig(bind="tcp://127.0.0.1:0"), keys)
    first.close()
    again = TrainerPort(LinkConfig(bind=first.endpoints.control), keys)
    again.close()
