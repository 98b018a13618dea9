"""What a selector that waits is told to check."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbpipe.link.reaching import why_silent


@pytest.fixture
def listening() -> Iterator[int]:
    """A port at which something listens that is no trainer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_name_that_does_not_resolve_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    words = why_silent("tcp://sbpipe-trainer-0-0.sbpipe:5570")
    assert "sbpipe-trainer-0-0.sbpipe does not resolve here (Name or service not known)" in words


def test_a_closed_port_leads_to_the_trainers_own_address(listening: int) -> None:
    with socket.socket() as taken:
        # Bound and not listening: nobody else can take it meanwhile.
        taken.bind(("127.0.0.1", 0))
        words = why_silent(f"tcp://127.0.0.1:{taken.getsockname()[1]}")
    assert "refuses port" in words
    assert "--bind is tcp://0.0.0.0" in words


def test_a_host_that_does_not_answer_leads_to_the_firewall(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", fail)
    assert "Check that ports 5570 and 5571 are open" in why_silent("tcp://10.1.2.3:5570")


def test_an_open_port_without_a_trainer_is_told_apart(listening: int) -> None:
    assert "is open, but no trainer answers behind it" in why_silent(f"tcp://127.0.0.1:{listening}")


def test_a_run_directory_without_a_trainer_says_so(tmp_path: Path) -> None:
    assert "connection.json is not there (yet)" in why_silent(str(tmp_path))


def test_a_unix_socket_and_auto_need_no_network() -> None:
    assert why_silent("auto") == ""
    assert why_silent("ipc:///tmp/none") == ""
