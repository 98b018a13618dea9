"""The bench of many selectors: its fleet is real to the trainer, its arithmetic is what it says."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from support.runs import HANG_S, small, train_over

from sbpipe.bench import shards
from sbpipe.bench.scale.answers import Answers
from sbpipe.bench.scale.fleet import run_fleet
from sbpipe.bench.scale.memory import MOST_MB, held_mb
from sbpipe.bench.scale.ranks import run_ranks
from sbpipe.bench.scale.transfer import arrival_s
from sbpipe.link.frames import decode, encode, seal
from sbpipe.link.messages import Message
from sbpipe.link.ports import Port
from sbpipe.records import Lease, Selection

SESSION = b"a session of it."


@pytest.mark.timeout(2 * HANG_S)
def test_simulated_selectors_serve_the_real_engine_and_score_nothing_in_vain() -> None:
    found = run_fleet(6, speed=0.0, step_s=0.0, steps=20, warm_up=5)
    assert found.leases > 0
    assert found.lease_bytes > 64 * 8
    assert found.waste < 0.05
    assert found.dispatch_s > 0.0


@pytest.mark.parametrize(("is_set", "candidates"), [(True, 64), (True, 150), (False, 64)])
def test_a_prepared_answer_is_that_of_its_lease_and_of_its_selector(is_set: bool, candidates: int) -> None:
    enough = 16 if is_set else 64
    lease = Lease(2**40, 0, 64, 64 + candidates, enough=enough, most=enough, version=7, keep=0.25)
    answer = Answers().to(lease)
    frames = seal(answer.of(lease, 640, 0.5), session=SESSION, sequence=3)
    told = decode(frames).message
    assert isinstance(told, Selection)
    assert (told.lease_id, told.version) == (lease.lease_id, lease.version)
    assert (told.stats.scored, told.stats.score_s) == (640, 0.5)
    assert len(told.scores) == answer.scored == lease.num_candidates
    assert np.all(told.keep_probability == 0.25)
    assert len(told.kept) == 16 if is_set else len(told.kept) <= 64


def test_a_prepared_answer_tells_all_that_a_classifiers_selector_does(tmp_path: Path) -> None:
    real = list[Selection]()

    def noted(port: Port) -> Port:
        receive = port.receive

        def receive_and_note(timeout_s: float) -> list[tuple[str, Message]]:
            came = receive(timeout_s)
            real.extend(message for _, message in came if isinstance(message, Selection))
            return came

        port.receive = receive_and_note  # type: ignore[method-assign]
        return port

    train_over(small(train__steps=3), tmp_path / "run", noted)
    lease = Lease(7, 0, 0, 64, enough=16, most=16, version=0, keep=0.25)
    frames = seal(Answers().to(lease).of(lease, 64, 0.5), session=SESSION, sequence=3)
    made = decode(frames).message
    assert isinstance(made, Selection)
    assert len(frames) == len(encode(real[-1], session=SESSION, sequence=3)) == 7
    assert told_by(made) >= set().union(*map(told_by, real))


def told_by(selection: Selection) -> set[str]:
    """The statistics that a selection has."""
    return {name for name, value in asdict(selection.stats).items() if value is not None}


@pytest.mark.slow
@pytest.mark.timeout(2 * HANG_S)
def test_steps_of_ranks_are_measured_beside_those_by_ddp_alone() -> None:
    found = run_ranks(2, rounds=1)
    assert found.keys() == {f"{what}_{of}" for what in ("step", "bare", "order") for of in ("s", "cpu_s")}
    assert min(found["step_s"], found["bare_s"]) >= 0.05, "both wait for their devices"


@pytest.mark.slow
@pytest.mark.timeout(2 * HANG_S)
def test_a_publish_of_shares_is_measured_by_two_ranks_and_is_that_of_the_whole() -> None:
    *_, memory, is_equal = shards.measure(layers=1)
    assert is_equal.is_met
    assert memory.value > 0.0


def test_what_few_examples_take_grows_with_their_number() -> None:
    assert held_mb(10**5) < 20.0


@pytest.mark.slow
def test_a_billion_examples_take_no_more_than_the_table_and_its_copies() -> None:
    assert held_mb(10**9) <= MOST_MB


def test_a_version_arrives_as_fast_as_the_slower_of_line_and_wire() -> None:
    assert arrival_s(1e9, line=1.25e8, hosts=8, wire=2e8) == pytest.approx(64.0)
    assert arrival_s(1e9, line=1.25e10, hosts=8, wire=2e8) == pytest.approx(40.0)
