"""What a trainer that means no good can make a selector hold: a bound, and one line when it is reached."""

import resource
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.curve_peer import CurveTrainer
from support.runs import HANG_S

from sbpipe.config import LinkConfig, resolve, to_json
from sbpipe.errors import PeerRejected
from sbpipe.link import limits
from sbpipe.link.addresses import Endpoints
from sbpipe.link.keys import new_keys
from sbpipe.link.messages import Announce, Chunk, Goodbye, Welcome
from sbpipe.link.selector_port import SelectorPort
from sbpipe.records import Lease, Part, RunEnd
from sbpipe.runs.spans import Spans
from sbpipe.selector.build import Builder
from sbpipe.selector.inbox import Inbox
from sbpipe.selector.permission import Permission
from sbpipe.selector.puller import Puller
from sbpipe.weights.replica import PulledSource, Replica, SlotSource
from sbpipe.weights.slots import Slots

LEASE = Lease(1, 0, 0, 64, enough=1, most=8, version=0)
SMALL = {
    "data.examples": 256,
    "data.test_examples": 16,
    "model.options": {"width": 4},
    "train.batch_size": 16,
}


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture
def builder() -> Iterator[Builder]:
    made = Builder("s-1", Permission(), torch.device("cpu"), Spans())
    yield made
    made.close()


def fill(inbox: Inbox, message: Lease | Goodbye, count: int = 10**6) -> None:
    for _ in range(count):
        inbox.put(message)


def welcome(**settings: object) -> Welcome:
    return Welcome(to_json(resolve(SMALL | settings)), "", 0.5, 4.0)


def test_leases_without_end_are_refused_in_one_line() -> None:
    inbox = Inbox()
    with pytest.raises(PeerRejected, match="more than anyone could answer: 256 messages") as refused:
        fill(inbox, LEASE)
    assert "\n" not in str(refused.value)


def test_leases_with_histories_of_the_greatest_size_are_bounded_by_their_bytes() -> None:
    inbox, history = Inbox(), np.zeros(limits.MAX_HISTORY, np.float32)
    with pytest.raises(PeerRejected, match="more than anyone could answer"):
        fill(inbox, replace(LEASE, history=history), 1 + limits.MAX_HELD_BYTES // history.nbytes)
    # What was answered makes room again.
    for _ in range(4):
        assert inbox.get(0.0) is not None
    inbox.put(replace(LEASE, history=history))


def test_goodbyes_without_end_are_refused_too_and_an_error_always_gets_through() -> None:
    inbox = Inbox()
    with pytest.raises(PeerRejected, match="256 messages"):
        fill(inbox, Goodbye(RunEnd.STOPPED, "x" * 4096))
    inbox.put(PeerRejected("why"))


def test_an_announcement_of_huge_weights_takes_no_memory() -> None:
    asked: list[object] = []
    puller = Puller({Part.WHOLE: 1000}, 512, PulledSource(), asked.append, Spans())
    before = peak_kib()
    for version in range(100):
        puller.handle(Announce(version, limits.MAX_SNAPSHOT_BYTES))
        puller.handle(Chunk(version, 0, limits.MAX_SNAPSHOT_BYTES, bytes(1 << 20)))
    # It asks for the pieces of the model it has built itself, whatever was announced.
    assert [(piece.offset, piece.num_bytes) for piece in asked] == [(0, 512), (512, 488)]  # type: ignore[attr-defined]
    assert peak_kib() - before < 64 << 10


def test_candidates_that_are_not_in_the_data_are_refused_in_one_line(builder: Builder) -> None:
    selector = builder(welcome()).selector
    with pytest.raises(PeerRejected, match="granted candidates 0 to 1048576 of a data set that has 256"):
        selector.answer(replace(LEASE, stop=limits.MAX_CANDIDATES))


def test_a_fast_part_that_nobody_publishes_is_refused_in_one_line() -> None:
    replica = object.__new__(Replica)
    replica._versions = dict.fromkeys(Part, 0)
    slots = Slots.create(4096)
    slots._header[3] = 0
    with pytest.raises(PeerRejected, match="a fast part of version 7"):
        SlotSource(slots)._refresh_fast(replica, 7, False, time.monotonic())


def test_a_model_that_takes_all_memory_is_refused_before_it_takes_any(builder: Builder) -> None:
    before = peak_kib()
    with pytest.raises(PeerRejected, match=r"model.name = 'small_cnn' .* takes 64.0 GB") as refused:
        builder(welcome(**{"model.options": {"width": 4096}}))
    assert "\n" not in str(refused.value)
    assert peak_kib() - before < 256 << 10


def test_a_message_of_a_trainer_that_never_ends_is_cut_off(tmp_path: Path) -> None:
    keys, ours = new_keys()
    trainer = CurveTrainer(keys)
    port = SelectorPort(Endpoints(trainer.endpoint, trainer.endpoint), "s-1", LinkConfig(), ours)
    num_bytes, is_over = 0, threading.Event()

    def attack() -> None:
        nonlocal num_bytes
        trainer.accept()
        frame = bytes(1 << 20)
        try:
            while not is_over.is_set():
                trainer.socket.sendall(trainer.frame(frame, more=True))
                num_bytes += len(frame)
        except OSError:
            pass

    attacker = threading.Thread(target=attack)
    attacker.start()
    before, deadline = peak_kib(), time.monotonic() + HANG_S
    try:
        while not port.refusal:
            assert time.monotonic() < deadline
            assert port.receive(0.05) == []
        assert "was cut off" in port.refusal
        assert "bytes without a complete message" in port.refusal
        assert peak_kib() - before < 1 << 20
    finally:
        is_over.set()
        port.close()
        attacker.join()
        trainer.close()
    assert num_bytes > 0
