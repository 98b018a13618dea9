"""How often each role waits for its device, by line: a new `.item()` in a loop fails here."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.digests import config_of
from support.runs import small, train_inline

from sbpipe.selection import POLICIES
from simulated.roles import Seen, Waits, train, waits_of_leases

FIRST, LAST = 10, 35
"""Steps, and leases, between which waits are counted: the beginning and the end of a run may wait."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    config = small(
        train__device="sim:0",
        selector__device="sim:1",
        train__steps=50,
        selection__keep=0.5,
        # Not auto: what is measured between leases must wait for the device, a few times in a run.
        selector__precision="fp32",
        selector__batch_size=16,
    )
    return train(config, tmp_path_factory.mktemp("waits") / "run")


def between(counts: list[Waits], thread: str) -> tuple[Counter[str], Counter[str]]:
    """Waits of a thread per line: all, and those after which the device had nothing left to do."""
    found: Any = Counter(counts[LAST])
    found.subtract(counts[FIRST])
    every: Counter[str] = Counter()
    drains: Counter[str] = Counter()
    for (of, where, is_drain), count in found.items():
        if of == thread and count:
            every[where] += count
            if is_drain:
                drains[where] += count
    return every, drains


def test_the_loop_waits_once_a_step_at_most_and_never_for_the_step_it_has_just_queued(seen: Seen) -> None:
    every, drains = between(seen.per_step, "MainThread")
    assert sum(every.values()) <= LAST - FIRST, every
    assert not drains


def test_the_loop_never_waits_for_a_publish(seen: Seen) -> None:
    every, _ = between(seen.per_step, "MainThread")
    assert [where for where in every if "/weights/" in where] == []


@pytest.mark.parametrize("thread", ["feed", "dispatch"])
def test_the_threads_beside_the_loop_never_wait_for_its_device(thread: str, seen: Seen) -> None:
    every, _ = between(seen.per_step, thread)
    assert not every


def test_the_selector_waits_once_a_lease_at_most_however_many_passes_it_takes(seen: Seen) -> None:
    every, _ = between(seen.per_lease, "MainThread")
    assert sum(every.values()) <= LAST - FIRST, every


@pytest.mark.parametrize("policy", [name for name, rule in POLICIES.items() if rule.traits.needs_scores])
def test_one_read_a_lease_is_enough_for_every_policy_and_keeps_what_the_cpu_keeps(
    policy: str, tmp_path: Path
) -> None:
    given = {"selection.policy": policy, "selector.batch_size": 4, "train.steps": 10, "selection.keep": 0.5}
    here = train_inline(config_of("inline", given, tmp_path), tmp_path / "cpu")
    with waits_of_leases() as waits:
        there = train_inline(
            config_of("inline", given | {"train.device": "sim:0"}, tmp_path), tmp_path / "sim"
        )
    assert len(waits) >= 10
    assert max(waits) <= 1
    assert there["weights.digest"] == here["weights.digest"]
