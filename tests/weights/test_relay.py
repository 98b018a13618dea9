"""Weights of another host, pulled once for all selectors of this one."""

import os
import resource
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from sbpipe.errors import PeerLost
from sbpipe.link.messages import Announce, Chunk, Fetch
from sbpipe.models import parts_of
from sbpipe.records import Part
from sbpipe.runs.spans import Spans
from sbpipe.selector.puller import Puller
from sbpipe.weights.leftovers import SHARED_MEMORY, sweep
from sbpipe.weights.manifest import build_manifest, tensors_in
from sbpipe.weights.relay import RelayedSource
from sbpipe.weights.replica import Replica
from sbpipe.weights.slots import Slots

MODEL = nn.Linear(3, 2)
MANIFEST = build_manifest(MODEL, parts_of(MODEL), "fp32")
SIZES = {Part.WHOLE: MANIFEST.num_bytes}
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave files of another user")


@pytest.fixture
def session() -> Iterator[str]:
    """The name of a trainer's slots, nothing of which is left at the end."""
    name = f"sbpipe-{secrets.token_hex(16)}"
    yield name
    assert not list(SHARED_MEMORY.glob(f"{name}*"))


def snapshot(value: float) -> torch.Tensor:
    flat = torch.zeros(MANIFEST.num_bytes, dtype=torch.uint8)
    for tensor in tensors_in(flat, MANIFEST):
        tensor.fill_(value)
    return flat


def scored_with(source: RelayedSource, version: int = 0) -> tuple[int, float]:
    """The version and the weights that a selector which reads from here has."""
    model = nn.Linear(3, 2)
    replica = Replica(model, MANIFEST)
    source.refresh(replica, version, exact=False, deadline_s=5.0)
    return replica.version, float(model.weight.detach()[0, 0])


def test_one_pulls_and_all_read_what_it_pulled(session: str) -> None:
    first, second = RelayedSource(session, SIZES), RelayedSource(session, SIZES)
    assert first.leads()
    assert not second.leads()
    first.offer(7, snapshot(0.5))
    assert scored_with(first) == scored_with(second) == (7, 0.5)
    first.offer(9, snapshot(1.5))
    assert scored_with(second) == (9, 1.5)
    second.close()
    first.close()


def test_when_the_one_that_pulls_is_gone_another_takes_over(session: str) -> None:
    first, second, third = (RelayedSource(session, SIZES) for _ in range(3))
    assert first.leads()
    first.offer(7, snapshot(0.5))
    assert scored_with(third) == (7, 0.5)
    first.close()
    assert scored_with(third) == (7, 0.5), "meanwhile the last complete version scores"
    assert second.leads()
    assert not third.leads()
    assert scored_with(third) == (7, 0.5), "what is still empty does not count"
    second.offer(8, snapshot(2.5))
    assert scored_with(third) == scored_with(second) == (8, 2.5)
    third.close()
    second.close()


def test_what_a_killed_selector_left_is_swept_and_does_not_stand_in_the_way(session: str) -> None:
    path = SHARED_MEMORY / f"{session}-lead"
    path.write_text("sbpipe-slots-that-are-gone")
    source = RelayedSource(session, SIZES)
    sweep()
    assert source.leads() or source.leads()
    source.offer(3, snapshot(1.0))
    assert scored_with(source) == (3, 1.0)
    source.close()


def test_a_wait_for_weights_that_nobody_pulls_ends(session: str) -> None:
    source = RelayedSource(session, SIZES)
    with pytest.raises(PeerLost, match="the selector of this host that pulls them has none"):
        source.refresh(Replica(nn.Linear(3, 2), MANIFEST), 0, exact=False, deadline_s=0.0)
    assert source.leads()
    source.close()


@pytest.mark.parametrize("name", ["", "other-1", "sbpipe-/../../etc/x", "sbpipe-../x"])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(OSError, match="not a name of sbpipe's slots"):
        RelayedSource(name, SIZES)


def test_weights_cross_the_wire_once_for_two_selectors(session: str) -> None:
    sources = [RelayedSource(session, SIZES) for _ in range(2)]
    asked: list[list[Fetch]] = [[], []]
    pullers = [
        Puller(SIZES, 1 << 20, source, fetched.append, Spans())
        for source, fetched in zip(sources, asked, strict=True)
    ]
    for puller in pullers:
        puller.handle(Announce(4, MANIFEST.num_bytes, Part.WHOLE))
    assert [len(fetched) for fetched in asked] == [1, 0]
    pullers[0].handle(Chunk(4, 0, MANIFEST.num_bytes, snapshot(0.5).numpy().tobytes()))
    assert scored_with(sources[1]) == (4, 0.5)
    for puller in pullers:
        puller.handle(Announce(6, MANIFEST.num_bytes, Part.WHOLE))
    sources[0].close()  # before its pull is complete
    pullers[1].watch(0.0)
    assert asked[1] == [Fetch(6, 0, MANIFEST.num_bytes, Part.WHOLE)]
    pullers[1].handle(Chunk(6, 0, MANIFEST.num_bytes, snapshot(2.0).numpy().tobytes()))
    assert scored_with(sources[1]) == (6, 2.0)
    sources[1].close()


def test_no_path_is_made_outside_shared_memory(session: str) -> None:
    source = RelayedSource(session, SIZES)
    assert source.leads()
    made = {path.parent for path in SHARED_MEMORY.glob(f"{session}*")}
    assert made == {Path("/dev/shm")}
    source.close()


@pytest.fixture
def tiny_shared_memory() -> Iterator[None]:
    """No file of this process may be longer than a page."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_where_shared_memory_is_too_small_each_pulls_for_itself_and_says_so_once(
    session: str, tiny_shared_memory: None, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = RelayedSource(session, SIZES), RelayedSource(session, SIZES)
    for source, value in ((first, 0.5), (second, 1.5)):
        assert source.leads()
        assert source.leads()
        source.offer(7, snapshot(value))
    assert (scored_with(first), scored_with(second)) == ((7, 0.5), (7, 1.5))
    assert [record.getMessage().count("has no room") for record in caplog.records] == [1, 1]
    for source in (first, second):
        source.close()


@needs_root
def test_another_users_file_leads_nobody(session: str) -> None:
    """Who saw the name could stand in the place of the one that pulls, and feed or stop all others."""
    squatted, theirs = (
        SHARED_MEMORY / f"{session}-lead",
        Slots.create(MANIFEST.num_bytes, name=f"{session[7:]}-x"),
    )
    assert theirs.path is not None
    index = theirs.begin()
    assert index is not None
    theirs.slot(index).copy_(snapshot(666.0))
    theirs.commit(index, 99)
    first, second = RelayedSource(session, SIZES), RelayedSource(session, SIZES)
    squatted.write_text(theirs.path.name)
    try:
        os.chown(squatted, NOBODY, NOBODY)
        assert first.leads()
        assert second.leads()
        first.offer(7, snapshot(0.5))
        second.offer(7, snapshot(0.5))
        assert scored_with(first) == scored_with(second) == (7, 0.5)
        with pytest.raises(OSError, match="belongs to user"):
            RelayedSource(session, SIZES)
        os.chown(theirs.path, NOBODY, NOBODY)
        with pytest.raises(OSError, match="belongs to user"):
            Slots.attach(theirs.path.name)
    finally:
        squatted.unlink()
        for each in (first, second, theirs):
            each.close()


@needs_root
def test_what_another_user_leaves_in_shared_memory_stops_no_run(session: str) -> None:
    planted, link = SHARED_MEMORY / f"{session}-planted", SHARED_MEMORY / f"{session}-link"
    planted.write_bytes(b"not empty, and open to all")
    planted.chmod(0o666)
    os.chown(planted, NOBODY, NOBODY)
    link.symlink_to(planted)
    try:
        assert sweep() == []
        assert planted.exists()
    finally:
        planted.unlink()
        link.unlink()
