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


class SilentAfterWelcome:
    """A port to a trainer that welcomes a selector and is never heard of again."""

    session, refusal = messages.NO_SESSION, ""
    _has_welcomed = False

    def __init__(self, welcome: messages.Welcome) -> None:
        self._welcome, self._left = welcome, list[messages.Message]()

    def receive(self, wait_s: float) -> list[messages.Message]:
        threading.Event().wait(wait_s)
        said, self._left = self._left, []
        return said

    def send(self, message: messages.Message) -> None:
        if isinstance(message, messages.Hello) and not self._has_welcomed:
            self._has_welcomed = True
            self._left.append(self._welcome)

    def post(self, message: messages.Message) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...


def test_one_looks_where_its_trainer_is_now_before_it_gives_up() -> None:
    """Also where `link.lost_after_s` is longer than what it waits for a lost trainer."""
    looked = threading.Event()

    def build_until_looked(welcome: messages.Welcome) -> Built:
        assert looked.wait(60.0), "nobody looked elsewhere"
        raise PeerLost("seen")

    port = SilentAfterWelcome(messages.Welcome("", "", heartbeat_s=0.05, lost_after_s=600.0))
    link = LinkConfig(heartbeat_s=0.05, orphan_timeout_s=0.5)
    hello = hello_of("s", "cpu", "fp32")
    with pytest.raises(PeerLost, match="seen"):
        SelectorService(port, hello, link, build_until_looked, Spans(), looked.set).run(threading.Event())
