"""The port of one process, and the port that misbehaves."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.runs import HANG_S

from sbpipe import link
from sbpipe.link.faults import MAX_DELAY, FaultyPort
from sbpipe.link.inline import InlinePort
from sbpipe.link.messages import Announce, Goodbye, Heartbeat, Hello, Message
from sbpipe.link.ports import Port
from sbpipe.records import RunEnd

HELLO = Hello("s1", "host", 1, "cpu", "fp32", "0.1.0")


def echo(message: Message) -> Iterable[Message]:
    """Answers an announcement with a heartbeat of the same number."""
    return [Heartbeat(message.version)] if isinstance(message, Announce) else []


def numbers(received: list[tuple[str, Message]]) -> list[int]:
    return [message.progress for _, message in received if isinstance(message, Heartbeat)]


def exchange(port: Port, count: int = 200) -> list[int]:
    """The numbers that come back when 0 .. count - 1 are sent, one between two receives."""
    came: list[int] = []
    for version in range(count):
        port.send("s1", Announce(version, 1))
        came += numbers(port.receive(0.0))
    for _ in range(4 * count):
        came += numbers(port.receive(0.0))
    return came


def test_receive_hands_one_message_to_the_handler_and_returns_its_replies() -> None:
    port = InlinePort(echo, "s1")
    assert port.send("s1", Announce(1, 1))
    assert port.post("s1", Announce(2, 1))
    assert port.receive(0.0) == [("s1", Heartbeat(1))]
    assert port.receive(0.0) == [("s1", Heartbeat(2))]
    assert port.receive(0.01) == []


def test_the_greeting_is_received_before_anything_is_sent() -> None:
    port = InlinePort(echo, "s1", greeting=[HELLO])
    port.send("s1", Announce(1, 1))
    assert port.receive(0.0) == [("s1", HELLO)]
    assert port.receive(0.0) == [("s1", Heartbeat(1))]


def test_a_handler_may_answer_with_nothing_or_with_much() -> None:
    port = InlinePort(
        lambda message: [Heartbeat(1), Heartbeat(2)] if isinstance(message, Announce) else [], "s1"
    )
    port.send("s1", Goodbye(RunEnd.STOPPED))
    port.send("s1", Announce(1, 1))
    assert port.receive(0.0) == []
    assert numbers(port.receive(0.0)) == [1, 2]


def test_another_peer_is_unreachable_and_a_refused_one_is_not_heard() -> None:
    port = InlinePort(echo, "s1")
    assert not port.send("s2", Announce(1, 1))
    port.refuse("s1")
    port.send("s1", Announce(1, 1))
    assert port.receive(0.0) == []
    assert port.dropped == {"unreachable": 1, "refused": 1}


def test_a_closed_port_sends_and_receives_nothing() -> None:
    port = InlinePort(echo, "s1", greeting=[HELLO])
    port.send("s1", Announce(1, 1))
    port.close()
    port.wake()
    assert port.receive(0.0) == []
    assert not port.send("s1", Announce(2, 1))


def test_the_link_loads_without_torch_and_zmq_and_msgpack_have_their_owners() -> None:
    files = list(Path(link.__path__[0]).glob("*.py"))
    owners = {
        name: [
            path.name for path in files if re.search(rf"^\s*(import|from) {name}\b", path.read_text(), re.M)
        ]
        for name in ("zmq", "msgpack")
    }
    zmq_owners = {"sockets.py", "trainer_port.py", "selector_port.py"}
    assert {name: set(found) for name, found in owners.items()} == {
        "zmq": zmq_owners,
        "msgpack": {"frames.py"},
    }
    modules = ", ".join(f"sbpipe.link.{path.stem}" for path in files)
    names = "{'torch', 'sbpipe.trainer', 'sbpipe.selector', 'sbpipe.selection', 'sbpipe.models'}"
    subprocess.run(
        [sys.executable, "-c", f"import sys, {modules}; sys.exit(bool({names} & set(sys.modules)))"],
        check=True,
        timeout=HANG_S,
    )


def test_without_faults_the_faulty_port_changes_nothing() -> None:
    port = FaultyPort(InlinePort(echo, "s1"), seed=1)
    assert exchange(port) == list(range(200))
    assert not +port.seen


def test_the_same_seed_gives_the_same_faults_and_another_seed_others() -> None:
    faults = {"drop": 0.1, "duplicate": 0.1, "delay": 0.2, "reorder": 0.2}
    runs = [exchange(FaultyPort(InlinePort(echo, "s1"), seed, **faults)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_dropped_messages_never_come_and_no_other_is_touched() -> None:
    port = FaultyPort(InlinePort(echo, "s1"), seed=3, drop=0.2)
    came = exchange(port)
    assert came == sorted(set(came))
    assert len(came) == 200 - port.seen["drop"]
    assert 40 < port.seen["drop"] < 110


def test_duplicated_messages_come_more_than_once_and_none_is_lost() -> None:
    port = FaultyPort(InlinePort(echo, "s1"), seed=3, duplicate=0.2)
    came = exchange(port)
    assert sorted(set(came)) == list(range(200))
    assert len(came) > 220


def test_delayed_messages_come_out_at_a_later_receive() -> None:
    port = FaultyPort(InlinePort(echo, "s1", greeting=[HELLO]), seed=3, delay=1.0)
    came = [port.receive(0.0) for _ in range(1 + MAX_DELAY)]
    assert came[0] == []
    assert [message for batch in came for message in batch] == [("s1", HELLO)]


@pytest.mark.parametrize("fault", ["delay", "reorder"])
def test_late_messages_change_the_order_and_nothing_else(fault: str) -> None:
    came = exchange(FaultyPort(InlinePort(echo, "s1"), seed=5, **{fault: 0.3}))
    assert came != sorted(came)
    assert sorted(came) == list(range(200))


def test_a_faulty_port_passes_on_everything_else() -> None:
    inner = InlinePort(echo, "s1")
    port: Port = FaultyPort(inner, seed=1)
    port.refuse("s1")
    port.wake()
    assert port.post("s1", Announce(1, 1))
    assert port.receive(0.0) == []
    assert (port.session, port.dropped) == (inner.session, {"refused": 1})
    port.close()
    assert not port.send("s1", Announce(1, 1))
