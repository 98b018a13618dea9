"""The bench of faults sees what goes wrong, and a few of its faults with real processes."""

import math
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs import SlowMotion, in_loaded

from sbpipe.bench.faults.cases import FAULTS
from sbpipe.bench.faults.fault import Fault
from sbpipe.bench.faults.rows import measured, shortcomings
from sbpipe.bench.faults.trial import Command, Ending, Trial

SHORT = {
    "selection.late": "wait",
    "train.epochs": 4.0,
    "checkpoint.every": 15,
    "loss.name": SlowMotion.loss,
}
"""Steps wait for a selector, so that a short run is not over before one works, and are slow until then."""
FAULT = Fault("a fault", lambda trial, run: run, says="lost")
GOOD = Ending(code=0, error=0.05, idle=0.0, lost=0, twice=0, words="")


@pytest.mark.parametrize(
    ("noticed_s", "ending", "complaint"),
    [
        (1.0, GOOD, ""),
        (None, GOOD, "nothing was said"),
        (7.0, GOOD, "noticed after 7.0 s"),
        (1.0, replace(GOOD, code=1), "ended with code 1, not 0"),
        (1.0, replace(GOOD, lost=3), "3 candidates lost, 0 considered twice"),
        (1.0, replace(GOOD, twice=2), "0 candidates lost, 2 considered twice"),
        (1.0, replace(GOOD, lost=None), "what was considered is not known"),
    ],
)
def test_what_is_not_as_it_must_be_is_told(noticed_s: float | None, ending: Ending, complaint: str) -> None:
    found = "; ".join(shortcomings(FAULT, noticed_s, 6.0, ending))
    assert found.startswith(complaint)
    assert bool(found) == bool(complaint)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.is_quick], ids=lambda fault: fault.name)
def test_a_run_outlives_a_fault_and_considers_every_candidate_once(fault: Fault) -> None:
    assert in_loaded(missed, fault.name) == ""


def missed(name: str) -> str:
    """What is not as it must be of a short run under a fault."""
    (fault,) = [fault for fault in FAULTS if fault.name == name]
    with tempfile.TemporaryDirectory() as folder:
        slow = SlowMotion(Path(folder), pace_s=0.03)
        os.environ.update(slow.env)

        def inflict(trial: Trial, run: Command) -> Command:
            counts = fault.inflict(trial, run)
            slow.ends()
            return counts

        short = replace(fault, inflict=inflict, changes=SHORT | dict(fault.changes))
        return measured(short, within_s=math.inf).missed
