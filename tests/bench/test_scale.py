"""The bench of many selectors: its fleet is real to the trainer, its arithmetic is what it says."""

import numpy as np
import pytest
from support.runs import HANG_S

from sbpipe.bench import shards
from sbpipe.bench.scale.answers import Answers
from sbpipe.bench.scale.fleet import run_fleet
from sbpipe.bench.scale.memory import held_mb
from sbpipe.bench.scale.transfer import arrival_s
from sbpipe.link.frames import decode, seal
from sbpipe.records import Lease, Selection

SESSION = b"a session of it."


@pytest.mark.timeout(2 * HANG_S)
def test_simulated_selectors_serve_the_real_engine_and_score_nothing_in_vain() -> None:
    found = run_fleet(6, speed=0.0, step_s=0.0, steps=20, warm_up=5)
    assert found.leases > 0
    assert found.waste < 0.05
    assert found.dispatch_s > 0.0


@pytest.mark.parametrize(("is_set", "candidates"), [(True, 64), (True, 150), (False, 64)])
def test_a_prepared_answer_is_that_of_its_lease_and_of_its_selector(is_set: bool, candidates: int) -> None:
    enough = 16 if is_set else 64
    lease = Lease(2**40, 0, 64, 64 + candidates, enough=enough, most=enough, version=7, keep=0.25)
    answer = Answers().to(lease)
    told = decode(seal(answer.of(lease, 640, 0.5), session=SESSION, sequence=3)).message
    assert isinstance(told, Selection)
    assert (told.lease_id, told.version) == (lease.lease_id, lease.version)
    assert (told.stats.scored, told.stats.score_s) == (640, 0.5)
    assert len(told.scores) == answer.scored == lease.num_candidates
    assert np.all(told.keep_probability == 0.25)
    assert len(told.kept) == 16 if is_set else len(told.kept) <= 64


@pytest.mark.slow
@pytest.mark.timeout(2 * HANG_S)
def test_a_publish_of_shares_is_measured_by_two_ranks_and_is_that_of_the_whole() -> None:
    *_, memory, is_equal = shards.measure(layers=1)
    assert is_equal.is_met
    assert memory.value > 0.0


def test_a_billion_examples_take_no_more_than_fits_the_table_and_its_copies() -> None:
    assert held_mb(10**5) < 20.0


def test_a_version_arrives_as_fast_as_the_slower_of_line_and_wire() -> None:
    assert arrival_s(1e9, line=1.25e8, hosts=8, wire=2e8) == pytest.approx(64.0)
    assert arrival_s(1e9, line=1.25e10, hosts=8, wire=2e8) == pytest.approx(40.0)
