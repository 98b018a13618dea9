"""The bench of accelerators runs whole on devices that are not there, and says what it could not measure."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import sbpipe

import simulated
from sbpipe.bench.accelerator import report
from sbpipe.bench.accelerator.checks import QUESTIONS

compiled = torch.compile


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run under a logical clock leaves its process with deterministic algorithms only.

    Of compiling, capture and guards are torch's own; it has no code for these devices.
    """
    monkeypatch.setattr(
        torch, "compile", lambda run, *, mode=None, **how: compiled(run, backend="eager", **how)
    )
    fills: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), fills.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(before[0])
    fills.fill_uninitialized_memory = before[1]
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("as_before")
def test_every_check_gives_facts_or_a_reason() -> None:
    found = report.gather(list(QUESTIONS), is_quick=True, ask=report.in_this_process)
    outcomes = {check["check"]: (check["outcome"], check["reason"]) for check in found["checks"]}
    assert outcomes.pop("collectives") == ("not here", "PyTorch has no collectives for sim")
    assert set(outcomes.values()) == {("measured", "")}
    facts = {(check["check"], fact["what"]): fact for check in found["checks"] for fact in check["facts"]}
    assert all(fact["note"] for fact in facts.values() if fact["value"] is None)
    value = {key: fact["value"] for key, fact in facts.items()}
    assert value["identity", "sim:1 name"] == "simulated accelerator 1"
    assert value["repeats", "the same bits twice"] is True
    assert value["tf32", "folded against plain, without TF32"] < 1e-5
    assert value["precisions", "small_cnn, fp16 ranks like fp32"] > 0.9
    assert "no integer convolutions for sim" in facts["precisions", "small_cnn, int8"]["note"]
    assert value["precisions", "linear layers, int8 ranks like fp32"] > 0.9
    assert value["compiled", "fp32, torch.compile takes new weights"] is True
    assert "Graph is not supported" in facts["compiled", "fp32, graph"]["note"]
    assert value["bandwidth", "host to device, pinned"] > 0
    assert value["bandwidth", "sim:0 to sim:1"] > 0
    assert value["publishing", "a selector has applied it after further"] > 0
    assert value["busy", "train step, by the device's events"] > 0
    assert 0 < value["busy", "as a run tells, busy"] <= 1
    assert value["waits", "step of the loop, waits"] == 0, "of those that torch names"
    assert value["both", "the second trains"] > 0
    assert value["both", "ranks of the second's scores are those of the first's"] == 1
    assert value["direct", "the same bits there"] is True
    assert "only CUDA has handles" in facts["direct", "from another process"]["note"]
    assert simulated.races() == []
    text = report.page(found)
    assert all(f"{name}: {question}?" in text for name, question in QUESTIONS.items())


def test_busy_by_events_is_what_the_device_was_busy() -> None:
    """Where the host queues faster than the device computes, only its own clock knows."""
    simulated.set_kernel_s(0, 1e-3)
    (check,) = report.gather(["busy"], is_quick=True, ask=report.in_this_process)["checks"]
    value = {fact["what"]: fact["value"] for fact in check["facts"]}
    assert value["train step, by the device's events"] > value["train step, until the host goes on"]


def test_the_command_leaves_a_file_and_never_overwrites_one(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    given = ("bench", "accelerator", "--quick", "--only", "identity", "--out", str(out))
    done = sbpipe(*given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sim:0 name" in done.stdout
    assert "please send it" in done.stderr
    found = json.loads(out.read_text())
    assert [check["check"] for check in found["checks"]] == ["identity"]
    assert str(tmp_path) not in out.read_text()
    assert os.uname().nodename not in out.read_text()
    again = sbpipe(*given)
    assert again.returncode == 2
    assert "is there already" in again.stderr
