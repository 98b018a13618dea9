"""The bench of many selectors: its fleet is real to the trainer, its arithmetic is what it says."""

import pytest
from support.runs import HANG_S

from sbpipe.bench.scale.fleet import run_fleet
from sbpipe.bench.scale.memory import held_mb
from sbpipe.bench.scale.transfer import arrival_s


@pytest.mark.timeout(2 * HANG_S)
def test_simulated_selectors_serve_the_real_engine_and_score_nothing_in_vain() -> None:
    found = run_fleet(6, speed=0.0, step_s=0.0, steps=20, warm_up=5)
    assert found.leases > 0
    assert found.waste < 0.05
    assert found.dispatch_s > 0.0


def test_a_billion_examples_take_no_more_than_fits_the_table_and_its_copies() -> None:
    assert held_mb(10**5) < 20.0


def test_a_version_arrives_as_fast_as_the_slower_of_line_and_wire() -> None:
    assert arrival_s(1e9, line=1.25e8, hosts=8, wire=2e8) == pytest.approx(64.0)
    assert arrival_s(1e9, line=1.25e10, hosts=8, wire=2e8) == pytest.approx(40.0)
