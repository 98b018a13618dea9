"""Every policy in every mode on two ranks: the batches of one rank cut into shares, wire or no wire."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.noted import NUM, Notes, irreducible, note_alone, note_ranks, noting
from support.runs import summary_of

from sbpipe.config import Config
from sbpipe.selection import POLICIES
from sbpipe.trainer.checkpoint import Checkpoints

MODES = ("inline", "lockstep", "fixed-lag", "fixed-lag again", "pipelined", "data-parallel")


def cases(*modes: str) -> list[tuple[str, str]]:
    """Every policy in those of the modes that have it."""
    return [(policy, mode) for policy in POLICIES for mode in modes if _has(mode, policy)]


def _has(mode: str, policy: str) -> bool:
    if mode == "data-parallel":
        return policy in ("full", "random")
    return mode == "inline" or not POLICIES[policy].traits.needs_trained_losses


def config_of(policy: str, mode: str, folder: Path, **changes: Any) -> Config:
    given = {"selection__irreducible": str(folder / "scores.npz")} if policy == "rho" else {}
    return noting(selection__policy=policy, mode=mode.removesuffix(" again"), **given, **changes)


def ledger_of(path: Path) -> dict[str, Any]:
    """Which candidates were considered, trained, and are to be leased yet, as the last checkpoint has it."""
    state = Checkpoints(path / "checkpoints").load_newest()
    assert state is not None
    return dict(state["engine"]["stream"]["ledger"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[Path, list[Notes]]]:
    """All of them on one pair of ranks: by policy and mode, where the run lies and what each rank trained."""
    folder = tmp_path_factory.mktemp("runs")
    irreducible(folder / "scores.npz")
    planned = {
        (policy, mode): (config_of(policy, mode, folder, train__ranks=2), folder / f"{policy} {mode}")
        for policy, mode in cases(*MODES)
    }
    notes = note_ranks(list(planned.values()))
    return {key: (path, noted) for (key, (_, path)), noted in zip(planned.items(), notes, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "mode"), cases("inline", "data-parallel"))
def test_two_ranks_train_the_batches_of_one_cut_into_shares(
    policy: str, mode: str, runs: Any, tmp_path: Path
) -> None:
    path, (first, second) = runs[policy, mode]
    summary, whole = note_alone(config_of(policy, "inline", path.parent), tmp_path / "alone")
    assert len(whole) == 6
    assert (first, second) == ([batch[0::2] for batch in whole], [batch[1::2] for batch in whole])
    assert ledger_of(path) == ledger_of(tmp_path / "alone")
    for key in ("candidates", "kept", "trained"):
        assert summary_of(path).get(key) == summary.get(key)


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "mode"), cases(*MODES))
def test_the_shares_of_every_batch_are_disjoint_and_complete_in_every_mode(
    policy: str, mode: str, runs: Any
) -> None:
    path, (first, second) = runs[policy, mode]
    summary = summary_of(path)
    assert [(len(one), len(other)) for one, other in zip(first, second, strict=True)] == [(4, 4)] * 6
    assert summary["trained"] == 6 * 8
    # No example is trained more often than it was a candidate: a share of another rank's would be.
    times = Counter(example for shares in (first, second) for share in shares for example in share)
    assert max(times.values()) <= -(-summary["candidates"] // NUM)
    assert all(not set(one) & set(other) for one, other in zip(first[:2], second[:2], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "mode"), cases("lockstep"))
def test_lockstep_over_the_wire_is_inline_on_two_ranks_for_every_policy(
    policy: str, mode: str, runs: Any
) -> None:
    (wire, notes), (inline, expected) = runs[policy, mode], runs[policy, "inline"]
    assert notes == expected
    assert ledger_of(wire) == ledger_of(inline)
    assert summary_of(wire)["weights.digest"] == summary_of(inline)["weights.digest"]
    assert summary_of(wire)["staleness.max"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "mode"), cases("fixed-lag again"))
def test_fixed_lag_on_two_ranks_repeats_bit_for_bit(policy: str, mode: str, runs: Any) -> None:
    (again, repeated), (path, notes) = runs[policy, mode], runs[policy, "fixed-lag"]
    assert notes == repeated
    assert ledger_of(path) == ledger_of(again)
    assert summary_of(path)["weights.digest"] == summary_of(again)["weights.digest"]
