"""A selector whose trainer does not answer."""

import socket
import threading
from pathlib import Path

import pytest

from sbpipe.config import LinkConfig
from sbpipe.errors import PeerLost
from sbpipe.link import messages
from sbpipe.link.keys import new_keys, write_selector_keys
from sbpipe.runs.spans import Spans
from sbpipe.selector import service
from sbpipe.selector.finder import Finder
from sbpipe.selector.service import Built, SelectorService, hello_of


def build(welcome: messages.Welcome) -> Built:
    raise AssertionError("nobody welcomes it")


def waiting_at(link: LinkConfig) -> SelectorService:
    finder = Finder(link, "s")
    port = finder.find(threading.Event())
    assert port is not None
    return SelectorService(port, hello_of("s", "cpu", "fp32"), link, build, Spans(), finder.moved)


def test_one_that_gives_up_says_what_to_check_and_has_said_so_before(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    key = tmp_path / "selector.key"
    write_selector_keys(key, new_keys()[1])
    monkeypatch.setattr(service, "_ASK_AFTER_S", 0.05)
    with socket.socket() as taken:
        # Bound and not listening: the port stays closed.
        taken.bind(("127.0.0.1", 0))
        where = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        link = LinkConfig(connect=where, keys=str(key), wait_s=0.5, heartbeat_s=0.05)
        with pytest.raises(PeerLost, match=r"for \d s \(link.wait_s\): 127.0.0.1 refuses port"):
            waiting_at(link).run(threading.Event())
    assert "still waiting, up to 0 s: 127.0.0.1 refuses port" in caplog.text
