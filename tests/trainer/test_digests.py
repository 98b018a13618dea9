"""Runs on a logical clock end with the same weights, bit for bit: over the wire or in one process, whatever
messages delay, resumed or whole. Every policy of the registry, in every mode that it allows.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.digests import CUT_AT, config_of, cut, first_difference, resumed, trained, variants
from support.runs import events_of, train_over

from sbpipe.config import Config
from sbpipe.errors import ConfigError
from sbpipe.link.faults import FaultyPort
from sbpipe.selection import POLICIES

pytestmark = pytest.mark.slow


def can_leave_the_process(policy: str) -> bool:
    return not POLICIES[policy].traits.needs_trained_losses


SELECTED: dict[str, dict[str, Any]] = {
    policy: {"selection.policy": policy} for policy in POLICIES
} | variants()
TWO_DEVICES = [what for what in SELECTED if what not in POLICIES or can_leave_the_process(what)]


class Whole(NamedTuple):
    """A run that was not interrupted."""

    config: Config
    path: Path
    summary: dict[str, Any]


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Whole]:
    """Runs by mode and what is selected, each made once."""
    folder, made = tmp_path_factory.mktemp("digests"), {}

    def run(mode: str, what: str) -> Whole:
        if (mode, what) not in made:
            config, path = config_of(mode, cut(SELECTED[what]), folder), folder / f"{mode} {what}"
            made[mode, what] = Whole(config, path, trained(config, path))
        return made[mode, what]

    return run


Wholes = Callable[[str, str], Whole]


@pytest.mark.parametrize("what", TWO_DEVICES)
def test_lockstep_over_the_wire_equals_one_process_bit_for_bit(what: str, whole: Wholes) -> None:
    inline, wire = whole("inline", what).summary, whole("lockstep", what).summary
    assert wire["weights.digest"] == inline["weights.digest"], first_difference(
        whole("inline", what).path, whole("lockstep", what).path
    )
    assert wire["staleness.max"] == 0
    assert wire["candidates"] == inline["candidates"]


@pytest.mark.parametrize("what", TWO_DEVICES)
def test_fixed_lag_gives_the_same_weights_whatever_the_messages_delay(
    what: str, whole: Wholes, run_path: Path
) -> None:
    plain = whole("fixed-lag", what)
    late = train_over(plain.config, run_path, lambda port: FaultyPort(port, 1, delay=0.5))
    assert late["weights.digest"] == plain.summary["weights.digest"], first_difference(plain.path, run_path)
    assert late["staleness.max"] == 2


@pytest.mark.parametrize(
    ("mode", "what"),
    [
        # Not int8: the ranges of its values are not kept, and a resumed run measures them again.
        *(("inline", what) for what in SELECTED if what != "int8"),
        *(("fixed-lag", what) for what in TWO_DEVICES if what != "int8"),
        ("data-parallel", "full"),
        ("data-parallel", "random"),
    ],
)
def test_a_resumed_run_ends_with_the_weights_of_a_whole_one(
    mode: str, what: str, whole: Wholes, run_path: Path
) -> None:
    one = whole(mode, what)
    shutil.copytree(one.path, run_path)
    again = resumed(one.config, run_path)
    assert events_of(run_path, "resumed")[0]["step"] == CUT_AT
    assert again["weights.digest"] == one.summary["weights.digest"]


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy not in TWO_DEVICES])
def test_a_policy_of_one_process_is_refused_in_two(policy: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"selection\.policy"):
        config_of("lockstep", SELECTED[policy], tmp_path)
