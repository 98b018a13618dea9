"""Fast parts are published more often than the whole: which bytes the selector ends up with, and that a run
repeats bit for bit.
"""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import HANG_S, events_of, small, train_over, train_over_the_wire
from torch import nn

from sbpipe.config import Config, ModelConfig, resolve, warnings_of
from sbpipe.errors import PeerLost
from sbpipe.link.faults import FaultyPort
from sbpipe.link.inline import InlinePort
from sbpipe.link.messages import Announce, Chunk, Fetch, Gone, Hello, Message, Ready, Welcome
from sbpipe.link.ports import Port
from sbpipe.models import build_model, parts_of
from sbpipe.records import Lease, Manifest, Part
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans
from sbpipe.selector.puller import Puller
from sbpipe.trainer.serving.peers import Roster
from sbpipe.trainer.serving.reception import Reception
from sbpipe.weights.manifest import FAST_PARTS, build_manifest, fast_part
from sbpipe.weights.publisher import Publisher
from sbpipe.weights.replica import PulledSource, Replica, SlotSource
from sbpipe.weights.slots import Slots


def net(seed: int = 0) -> nn.Module:
    return build_model(ModelConfig(options={"width": 8}), num_classes=10, input_shape=(3, 32, 32), seed=seed)


class Trained:
    """A model whose every number is the version it was published under, and the publishers of both rates."""

    def __init__(self, num_slots: int = 3) -> None:
        self.model = net()
        self.manifest = build_manifest(self.model, parts_of(self.model))
        fast = fast_part(self.manifest)
        assert fast is not None
        self.slots = Slots.create(self.manifest.num_bytes, num_slots=num_slots, fast_bytes=fast.num_bytes)
        assert self.slots.fast is not None
        self.publisher = Publisher(self.model, self.manifest, self.slots, Spans(), {}, lambda *offered: None)
        self.whole, self.fast = self.publisher[Part.WHOLE], self.publisher[Part.FAST]

    def publish(self, version: int, *, whole: bool = False, fast: bool = False) -> None:
        with torch.no_grad():
            for tensor in self.model.state_dict().values():
                tensor.fill_(version)
        assert not whole or self.whole.publish(version)
        assert not fast or self.fast.publish(version)


def replica_of() -> tuple[Replica, nn.Module]:
    model = net(1)
    return Replica(model, build_manifest(model, parts_of(model))), model


def held(model: nn.Module) -> tuple[set[float], set[float]]:
    """The numbers in the body and in the fast parts."""
    parts, state = parts_of(model), model.state_dict()
    values = [(parts[name] in FAST_PARTS, set(tensor.flatten().tolist())) for name, tensor in state.items()]
    body, fast = (
        set().union(*(found for is_fast, found in values if is_fast == kind)) for kind in (False, True)
    )
    return body, fast


def refresh(
    trained: Trained, replica: Replica, version: int, fast_version: int, *, exact: bool = False
) -> bool:
    return SlotSource(trained.slots).refresh(
        replica, version, exact=exact, deadline_s=HANG_S, fast_version=fast_version
    )


def test_newer_fast_parts_lie_over_an_older_whole() -> None:
    trained, (replica, model) = Trained(), replica_of()
    trained.publish(0, whole=True, fast=True)
    trained.publish(3, fast=True)
    assert refresh(trained, replica, 0, 3)
    assert (replica.version, replica.fast_version, held(model)) == (0, 3, ({0.0}, {3.0}))
    assert not refresh(trained, replica, 0, 3)
    assert [stage for stage, _, _ in replica.take_loads()] == ["apply", "apply_fast"]


def test_a_whole_that_is_newer_than_the_newest_fast_parts_brings_its_own() -> None:
    trained, (replica, model) = Trained(), replica_of()
    trained.publish(3, fast=True)
    trained.publish(4, whole=True)
    assert refresh(trained, replica, 4, 4)
    assert (replica.version, replica.fast_version, held(model)) == (4, 4, ({4.0}, {4.0}))


def test_fast_parts_stay_when_an_older_whole_arrives_late() -> None:
    trained, (replica, model), source = Trained(), replica_of(), PulledSource()
    for version, whole, fast in ((0, True, True), (8, True, False), (10, False, True)):
        trained.publish(version, whole=whole, fast=fast)
    assert trained.slots.fast is not None
    index = trained.slots.find(0, exact=True)
    assert index is not None
    source.offer(0, trained.slots.slot(index).clone())
    source.offer(10, trained.slots.fast.slot(trained.slots.fast.newest).clone(), Part.FAST)
    assert source.refresh(replica, 0, exact=False, deadline_s=HANG_S, fast_version=0)
    assert held(model) == ({0.0}, {10.0})
    source.offer(8, trained.slots.slot(trained.slots.newest).clone())
    assert source.refresh(replica, 0, exact=False, deadline_s=HANG_S, fast_version=0)
    assert (replica.version, replica.fast_version, held(model)) == (8, 10, ({8.0}, {10.0}))


def test_exact_fast_parts_are_found_among_newer_ones_and_can_be_older_again() -> None:
    trained, (replica, model) = Trained(num_slots=5), replica_of()
    trained.publish(0, whole=True, fast=True)
    for version in (1, 2, 3):
        trained.publish(version, fast=True)
    for fast_version in (2, 3, 2, 0):
        refresh(trained, replica, 0, fast_version, exact=True)
        assert (replica.version, replica.fast_version, held(model)) == (
            0,
            fast_version,
            ({0.0}, {float(fast_version)}),
        )


def test_fast_parts_that_never_come_are_an_error_with_a_deadline() -> None:
    trained, (replica, _) = Trained(), replica_of()
    trained.publish(0, whole=True, fast=True)
    with pytest.raises(PeerLost, match="the fast part of version 2 did not appear"):
        SlotSource(trained.slots).refresh(replica, 0, exact=True, deadline_s=0.05, fast_version=2)
    source = PulledSource()
    source.offer(0, trained.slots.slot(trained.slots.newest).clone())
    with pytest.raises(PeerLost, match="version 0 with a fast part of version 2 did not arrive"):
        source.refresh(replica, 0, exact=True, deadline_s=0.05, fast_version=2)


def test_a_reader_never_sees_torn_fast_parts() -> None:
    trained, (replica, model) = Trained(), replica_of()
    trained.publish(0, whole=True, fast=True)
    is_over = threading.Event()

    def write() -> None:
        version = 0
        while not is_over.is_set():
            version += 1
            trained.publish(version, fast=True)

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(50):
        refresh(trained, replica, 0, replica.fast_version + 1)
        assert held(model) == ({0.0}, {float(replica.fast_version)})
    is_over.set()
    writer.join()


def test_a_model_without_fast_parts_or_without_a_body_has_nothing_to_publish_apart() -> None:
    for model in (nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2))):
        assert fast_part(build_manifest(model, parts_of(model))) is None
    assert fast_part(Manifest((), 100, 0, "")) is None


@pytest.mark.parametrize(
    ("changes", "fast_interval"),
    [
        ({}, 1),
        ({"sync__fast_interval": 3}, 3),
        ({"sync__fast_interval": 0}, 0),
        ({"sync__fast_interval": 8}, 0),
        ({"sync__interval": 1}, 0),
        ({"mode": "lockstep"}, 0),
        ({"mode": "inline"}, 0),
        ({"selection__policy": "random"}, 0),
        ({"mode": "data-parallel", "selection__policy": "full"}, 0),
    ],
)
def test_fast_parts_go_apart_only_where_that_gains_something(
    changes: dict[str, Any], fast_interval: int
) -> None:
    config = small(**{"sync__interval": 8, **changes})
    assert config.fast_interval == fast_interval


def test_a_fast_interval_without_effect_warns() -> None:
    assert warnings_of(resolve({"sync.interval": 8, "sync.fast_interval": 2})) == []
    assert warnings_of(resolve({"sync.interval": 1})) == []
    (note,) = warnings_of(resolve({"sync.interval": 4, "sync.fast_interval": 4}))
    assert (
        note == "sync.fast_interval = 4 has no effect: the whole is published every 4 steps (sync.interval)"
    )


# --- the wire -------------------------------------------------------------------------------------


class Notebook(InlinePort):
    """The trainer's end of a port, and what it said."""

    def __init__(self) -> None:
        super().__init__(lambda message: [], "far")
        self.said: list[Message] = []

    def send(self, peer: str, message: Message) -> bool:
        self.said.append(message)
        return True


def reception_of(trained: Trained, port: Port, *, is_clocked: bool) -> Reception:
    return Reception(
        port=port,
        roster=Roster(lost_after_s=60.0, hung_after_s=60.0),
        welcome=Welcome("{}", "", 0.5, 4.0),
        fingerprints={},
        publisher=trained.publisher,
        is_clocked=is_clocked,
        events=EventLog(None, "trainer"),
    )


def admitted(trained: Trained, *, is_clocked: bool) -> tuple[Reception, Notebook]:
    port = Notebook()
    reception = reception_of(trained, port, is_clocked=is_clocked)
    for message in (
        Hello("far", "host", 1, "cpu", "fp32", "0"),
        Ready({}, pulls_weights=True, precision="fp32"),
    ):
        reception.handle("far", message, 0.0)
    return reception, port


def test_whole_and_fast_parts_are_announced_and_pulled_side_by_side() -> None:
    trained, (replica, model), source = Trained(), replica_of(), PulledSource()
    trained.publish(8, whole=True)
    trained.publish(9, fast=True)
    reception, port = admitted(trained, is_clocked=False)
    fetched: list[Fetch] = []
    sizes = {Part.WHOLE: trained.manifest.num_bytes, Part.FAST: trained.manifest.fast_bytes}
    puller = Puller(sizes, 10_000, source, fetched.append, Spans())
    while port.said or fetched:
        for message in port.said:
            if isinstance(message, Announce | Chunk | Gone):
                puller.handle(message)
        port.said.clear()
        for fetch in fetched:
            reception.handle("far", fetch, 0.0)
        fetched.clear()
    assert source.refresh(replica, 0, exact=False, deadline_s=HANG_S, fast_version=0)
    assert (replica.version, replica.fast_version, held(model)) == (8, 9, ({8.0}, {9.0}))
    trained.publish(16, whole=True, fast=True)
    assert trained.fast.publish(17)
    assert trained.fast.publish(18)  # nothing stays held


def test_under_a_clock_nothing_is_announced_for_the_newest_need_not_be_what_a_lease_names() -> None:
    trained = Trained()
    trained.publish(8, whole=True, fast=True)
    _, port = admitted(trained, is_clocked=True)
    assert not any(isinstance(message, Announce) for message in port.said)


def test_an_exact_lease_makes_both_be_fetched_and_only_what_is_apart() -> None:
    fetched: list[Fetch] = []
    puller = Puller(dict.fromkeys(Part, 500), 500, PulledSource(), fetched.append, Spans())
    for lease in (
        Lease(1, 0, 0, 9, 3, 3, version=0, exact=True, fast_version=0),
        Lease(2, 0, 0, 9, 3, 3, version=0, exact=True, fast_version=1),
        Lease(3, 0, 0, 9, 3, 3, version=5, exact=False, fast_version=6),
    ):
        puller.lease(lease)
    assert fetched == [Fetch(0, 0, 500), Fetch(1, 0, 500, Part.FAST)]


def test_fast_parts_that_are_not_there_are_gone() -> None:
    trained = Trained()
    trained.publish(8, whole=True, fast=True)
    reception, port = admitted(trained, is_clocked=True)
    for fetch in (Fetch(7, 0, 10, Part.FAST), Fetch(8, 0, trained.manifest.fast_bytes + 1, Part.FAST)):
        reception.handle("far", fetch, 0.0)
        assert port.said[-1] == Gone(fetch.version, Part.FAST)


# --- whole runs -----------------------------------------------------------------------------------


def train(config: Config, path: Path, *, resume: bool = False, delay: float = 0.0) -> dict[str, Any]:
    """A run whose selector answers in this process, over a port that may delay."""
    return train_over(config, path, lambda port: FaultyPort(port, 3, delay=delay), resume=resume)


def test_a_run_tells_the_staleness_of_both_and_costs_of_the_fast_publishes(run_path: Path) -> None:
    summary = train(small(mode="fixed-lag", sync__lag=1, sync__interval=4), run_path)
    steps = events_of(run_path, "step")
    assert [event["staleness_mean"] for event in steps[:9]] == [0, 1, 2, 3, 4, 1, 2, 3, 4]
    assert [event["fast_staleness_mean"] for event in steps[:4]] == [0, 1, 1, 1]
    assert summary["staleness.fast_mean"] == pytest.approx(11 / 12)
    assert summary["staleness.max"] == 4
    assert summary["sync.fast_published"] == 13
    assert summary["sync.fast_publish_ms"] > 0
    assert 0 < summary["sync.fast_bytes"] < summary["weights.bytes"] / 4


def test_a_run_of_one_rate_has_no_fast_numbers(run_path: Path) -> None:
    summary = train(small(mode="fixed-lag", sync__lag=1, sync__interval=4, sync__fast_interval=0), run_path)
    assert events_of(run_path, "step")[5]["fast_staleness_mean"] is None
    assert [summary[name] for name in ("staleness.fast_mean", "sync.fast_publish_ms", "sync.fast_bytes")] == [
        None
    ] * 3


@pytest.mark.slow
def test_scores_agree_better_with_fresh_losses_at_two_rates(tmp_path: Path) -> None:
    changes = {
        "mode": "fixed-lag",
        "sync__lag": 1,
        "sync__interval": 8,
        "train__steps": 40,
        "train__batch_size": 32,
    }
    errors = [
        train(small(**changes, sync__fast_interval=fast_interval), tmp_path / str(fast_interval))[
            "fidelity.mean_error"
        ]
        for fast_interval in (0, 1)
    ]
    assert errors[1] < errors[0]


def test_two_rates_give_the_same_weights_whatever_the_messages_delay(tmp_path: Path) -> None:
    config = small(mode="fixed-lag", sync__lag=2, sync__interval=4, train__steps=16)
    plain, late = (train(config, tmp_path / str(delay), delay=delay) for delay in (0.0, 0.5))
    other = train(
        small(mode="fixed-lag", sync__lag=2, sync__interval=4, sync__fast_interval=0, train__steps=16),
        tmp_path / "one",
    )
    assert plain["weights.digest"] == late["weights.digest"] != other["weights.digest"]


@pytest.mark.parametrize(
    ("fast_interval", "every"), [(1, 7), (3, 4), (3, 6)]
)  # (3, 4): version 3 is still needed at step 5
def test_a_run_of_two_rates_resumes_to_the_same_weights(
    tmp_path: Path, fast_interval: int, every: int
) -> None:
    changes = {"mode": "fixed-lag", "sync__lag": 2, "sync__interval": 8, "sync__fast_interval": fast_interval}
    config = small(**changes, train__steps=16, checkpoint__every=every, checkpoint__keep=9)
    whole = train(config, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("*.pt"):
        if path.name != f"step-{every}.pt":
            path.unlink()
    (tmp_path / "run" / "summary.json").unlink()
    again = train(config, tmp_path / "run", resume=True)
    assert events_of(tmp_path / "run", "resumed")[0]["step"] == every
    assert again["weights.digest"] == whole["weights.digest"]


@pytest.mark.slow
def test_a_run_whose_ramp_is_under_way_resumes_to_the_same_weights(tmp_path: Path) -> None:
    changes = {
        "mode": "fixed-lag",
        "sync__lag": 2,
        "sync__interval": 4,
        "selection__ramp": True,
        "train__batch_size": 64,
    }
    config = small(**changes, train__steps=30, optim__lr=0.05, checkpoint__every=18, checkpoint__keep=9)
    whole = train(config, tmp_path / "run")
    assert events_of(tmp_path / "run", "step")[17]["strength"] > 0.05
    (tmp_path / "run" / "checkpoints" / "step-30.pt").unlink()
    (tmp_path / "run" / "summary.json").unlink()
    again = train(config, tmp_path / "run", resume=True)
    assert events_of(tmp_path / "run", "resumed")[0]["step"] == 18
    assert again["weights.digest"] == whole["weights.digest"]
    for name in ("swing", "ess", "strength", "guard"):  # when predictions arrive is a matter of time
        assert again[f"selection.{name}"] == whole[f"selection.{name}"]


def test_over_the_wire_two_rates_equal_those_in_one_process_shared_or_pulled(tmp_path: Path) -> None:
    changes = {"mode": "fixed-lag", "sync__lag": 1, "sync__interval": 4}
    inline = train(small(**changes), tmp_path / "inline")
    for is_shared in (True, False):
        config = small(**changes, sync__shared_memory=is_shared, link__chunk_mib=0.002)
        wire = train_over_the_wire(config, tmp_path / str(is_shared))
        assert wire["weights.digest"] == inline["weights.digest"]
        assert wire["staleness.fast_mean"] == inline["staleness.fast_mean"]


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_pipelined_run_of_two_rates_has_younger_fast_parts(run_path: Path, is_shared: bool) -> None:
    summary = train_over_the_wire(
        small(train__steps=40, sync__interval=8, sync__shared_memory=is_shared), run_path
    )
    assert summary["staleness.fast_mean"] < summary["staleness.mean"]
    assert summary["sync.fast_published"] > summary["sync.published"]
