"""In lockstep a kill changes no bit of the weights."""

import pytest

from sbpipe.bench.faults import lockstep
from sbpipe.bench.faults.lockstep import Kill, disturbed, undisturbed


@pytest.mark.slow
def test_a_run_in_lockstep_that_is_killed_ends_with_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lockstep.JOB, "train.epochs", 1.0)
    monkeypatch.setitem(lockstep.JOB, "checkpoint.every", 4)
    reference = undisturbed()
    assert reference.digest
    assert (reference.code, reference.lost, reference.twice) == (0, 0, 0)
    assert disturbed(Kill("trainer", reference.steps // 2)) == reference
