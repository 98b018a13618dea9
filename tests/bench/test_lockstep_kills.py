"""In lockstep a kill changes no bit of the weights."""

from support.runs import in_loaded

from sbpipe.bench.faults import lockstep
from sbpipe.bench.faults.lockstep import Kill, Outcome, disturbed, undisturbed


def test_a_run_in_lockstep_that_is_killed_ends_with_the_same_weights() -> None:
    reference, killed = in_loaded(one_and_one_killed_halfway)
    assert reference.digest
    assert (reference.code, reference.lost, reference.twice) == (0, 0, 0)
    assert killed == reference


def one_and_one_killed_halfway() -> tuple[Outcome, Outcome]:
    """Both of one epoch; in a process of its own."""
    lockstep.JOB.update({"train.epochs": 1.0, "checkpoint.every": 4})
    reference = undisturbed()
    return reference, disturbed(Kill("trainer", reference.steps // 2))
