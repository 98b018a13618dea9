"""Whole runs on simulated devices: they train, repeat bit for bit, resume, and nothing in them races."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.digests import CUT_AT, config_of, cut, resumed, trained
from support.runs import (
    HANG_S,
    events_of,
    sbpipe,
    settings,
    small,
    start,
    summary_of,
    train_inline,
    train_over_the_wire,
)

import simulated
from sbpipe.selection import POLICIES
from simulated.roles import train

ON_TWO = {"train.device": "sim:0", "selector.device": "sim:1", "train.steps": 8}
TWO_PROCESSES = [policy for policy, rule in POLICIES.items() if not rule.traits.needs_trained_losses]


@pytest.mark.parametrize(
    ("trainer", "selector"),
    [("sim:0", "sim:1"), ("sim:1", "sim:0"), ("sim:0", "sim:0"), ("sim:1", "cpu"), ("cpu", "sim:1")],
)
def test_a_pipelined_run_trains_without_a_race_and_on_its_own_devices_only(
    trainer: str, selector: str, run_path: Path
) -> None:
    seen = train(small(train__device=trainer, selector__device=selector, train__steps=20), run_path)
    assert seen.summary["steps"] == 20
    assert seen.races == []
    assert used(seen.trainer, "launches") == [device for device in (trainer,) if device != "cpu"]
    assert used(seen.selector, "is_touched") == [device for device in (selector,) if device != "cpu"]


def used(report: dict[str, Any], how: str) -> list[str]:
    return [f"sim:{index}" for index, device in enumerate(report["devices"]) if device[how]]


@pytest.mark.parametrize("policy", TWO_PROCESSES)
def test_lockstep_on_two_devices_equals_one_process_on_one(policy: str, tmp_path: Path) -> None:
    given = ON_TWO | {"selection.policy": policy}
    wire = train_over_the_wire(config_of("lockstep", given, tmp_path), tmp_path / "wire")
    inline = train_inline(config_of("inline", given, tmp_path), tmp_path / "inline")
    assert wire["weights.digest"] == inline["weights.digest"]
    assert wire["staleness.max"] == 0
    assert simulated.races() == []


@pytest.mark.parametrize(
    ("mode", "policy"),
    [
        ("inline", "spread"),
        ("inline", "infobatch"),
        ("inline", "steady"),
        ("fixed-lag", "sb"),
        ("lockstep", "steady"),
    ],
)
def test_a_resumed_run_on_a_device_ends_with_the_weights_of_a_whole_one(
    mode: str, policy: str, tmp_path: Path
) -> None:
    config = config_of(mode, cut(ON_TWO | {"selection.policy": policy}), tmp_path)
    whole = trained(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    again = resumed(config, tmp_path / "cut")
    assert events_of(tmp_path / "cut", "resumed")[0]["step"] == CUT_AT
    assert again["weights.digest"] == whole["weights.digest"]
    assert simulated.races() == []


@pytest.mark.parametrize("slowness", [(12.0, 1.0), (1.0, 12.0)])
def test_a_device_that_is_far_behind_its_host_changes_nothing(
    slowness: tuple[float, float], run_path: Path
) -> None:
    for index, factor in enumerate(slowness):
        simulated.set_slowness(index, factor)
    config = small(mode="inline", train__device=f"sim:{slowness.index(12.0)}")
    late = train_inline(config, run_path)
    for index in range(2):
        simulated.set_slowness(index, 1.0)
    assert late["weights.digest"] == train_inline(config, run_path.with_name("usual"))["weights.digest"]
    assert simulated.races() == []


def test_the_command_runs_both_roles_on_devices_of_their_own(tmp_path: Path) -> None:
    given = settings(train__device="sim:0", selector__device="sim:1", train__steps=20)
    environment = os.environ | {
        simulated.REPORT: str(tmp_path),
        simulated.TRACE: "1",
        simulated.SLOWNESS: "3,1",
    }
    done = sbpipe("run", "--run-dir", str(tmp_path / "run"), *given, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary_of(tmp_path / "run")["steps"] == 20
    told = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert [race for one in told for race in one["races"]] == []
    assert sorted(used(one, "is_touched") for one in told if used(one, "is_touched")) == [
        ["sim:0"],
        ["sim:1"],
    ]


def test_the_roles_as_commands_of_their_own_take_the_devices_they_are_given(tmp_path: Path) -> None:
    environment = os.environ | {simulated.REPORT: str(tmp_path), simulated.TRACE: "1"}
    run, given = str(tmp_path / "run"), settings(train__steps=10)
    # Started and not forked: the devices read this environment when they are made, and report at the end.
    roles = [
        start("trainer", "--device", "sim:0", "--run-dir", run, *given, env=environment),
        start("selector", "--device", "sim:1", "--connect", run, env=environment),
    ]
    try:
        said = [role.communicate(timeout=HANG_S)[0] for role in roles]
    finally:
        for role in roles:
            role.kill()
            role.communicate(timeout=HANG_S)
    assert [role.returncode for role in roles] == [0, 0], said
    assert summary_of(tmp_path / "run")["steps"] == 10
    told = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    touched = {command_of(one): used(one, "is_touched") for one in told}
    assert touched == {"trainer": ["sim:0"], "selector": ["sim:1"]}
    assert [race for one in told for race in one["races"]] == []


def command_of(report: dict[str, Any]) -> str:
    return str(report["arguments"][1])


@pytest.mark.parametrize(
    ("trainer", "selector", "amp"),
    [("cpu", "cpu", "bf16"), ("sim:0", "sim:1", "fp16")],
)
def test_lockstep_equals_one_process_where_the_step_is_in_half_precision(
    trainer: str, selector: str, amp: str, tmp_path: Path
) -> None:
    given = {"train.device": trainer, "selector.device": selector, "train.amp": amp, "train.steps": 8}
    wire = train_over_the_wire(config_of("lockstep", given, tmp_path), tmp_path / "wire")
    inline = train_inline(config_of("inline", given, tmp_path), tmp_path / "inline")
    assert wire["weights.digest"] == inline["weights.digest"]


def test_weights_that_are_pulled_score_as_in_one_process(tmp_path: Path) -> None:
    """Their kernels lie in channels-last on the way, which the selector is told."""
    given = ON_TWO | {"sync.shared_memory": False}
    wire = train_over_the_wire(config_of("lockstep", given, tmp_path), tmp_path / "wire")
    inline = train_inline(config_of("inline", given, tmp_path), tmp_path / "inline")
    assert wire["weights.digest"] == inline["weights.digest"]
