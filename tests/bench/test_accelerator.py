"""The bench of accelerators without one: what is refused, what a failure costs, what must not be told."""

import getpass
import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import sbpipe

from sbpipe.bench import accelerator_bench
from sbpipe.bench.accelerator import child, report
from sbpipe.bench.accelerator.check import QUICK, Fact, NotHere, Size, attempt
from sbpipe.bench.accelerator.checks import QUESTIONS
from sbpipe.errors import ConfigError, DeviceError


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_a_machine_without_an_accelerator_is_told_and_no_file_is_left(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    with pytest.raises(DeviceError, match=r"PyTorch sees no accelerator on this machine. `sbpipe doctor`"):
        accelerator_bench([], out, is_quick=True, as_json=False)
    assert not out.exists()


def test_a_file_that_is_there_is_not_lost_and_a_place_that_is_not_is_told_first(tmp_path: Path) -> None:
    there = tmp_path / "found.json"
    there.write_text("mine")
    with pytest.raises(ConfigError, match=r"is there already. Name another file"):
        report.check_place(there)
    assert there.read_text() == "mine"
    with pytest.raises(ConfigError, match=r"cannot be written \(No such file or directory\)"):
        report.check_place(tmp_path / "nowhere" / "found.json")
    report.check_place(tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()


def test_checks_are_chosen_by_words_and_a_wrong_word_is_told() -> None:
    assert report.chosen(["tf", "busy"]) == ["tf32", "busy"]
    assert report.chosen([]) == list(QUESTIONS)
    with pytest.raises(ConfigError, match=r"no check is called so. There are identity"):
        report.chosen(["speed"])


def test_its_arguments_belong_to_it_alone() -> None:
    done = sbpipe("bench", "scoring", "--out", "x.json")
    assert done.returncode == 2
    assert "--out = 'x.json': belongs to the bench of accelerator" in done.stderr


def of_checks(monkeypatch: pytest.MonkeyPatch, **measures: Any) -> dict[str, dict[str, Any]]:
    """The answers of made-up checks, asked in this process."""
    monkeypatch.setattr(report, "QUESTIONS", dict.fromkeys(measures, "is it so"))
    monkeypatch.setattr(child, "measure_of", lambda name: measures[name])
    found = report.gather(list(measures), is_quick=True, ask=report.in_this_process)
    json.dumps(found, allow_nan=False)
    return {check["check"]: check for check in found["checks"]} | {"whole": found}


def test_a_check_that_fails_is_reported_with_its_reason_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(size: Size) -> Sequence[Fact]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    def is_not_here(size: Size) -> Sequence[Fact]:
        raise NotHere("there is one accelerator")

    def measures(size: Size) -> Sequence[Fact]:
        return [
            Fact("speed", 3.5, "GB/s"),
            Fact("ranks", float("nan")),
            *attempt("part", lambda: breaks(size)),
        ]

    found = of_checks(monkeypatch, breaks=breaks, absent=is_not_here, measures=measures)
    reason = "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert (found["breaks"]["outcome"], found["breaks"]["reason"]) == ("failed", reason)
    assert (found["absent"]["outcome"], found["absent"]["reason"]) == ("not here", "there is one accelerator")
    assert found["measures"]["outcome"] == "measured"
    assert [fact["value"] for fact in found["measures"]["facts"]] == [3.5, "nan", None]
    assert found["measures"]["facts"][2]["note"] == f"failed: {reason}"
    assert report.has_failed(found["whole"])
    page = report.page(found["whole"])
    assert "speed  3.5 GB/s" in page
    assert "1 checks measured, 1 not possible here, 1 failed." in page
    assert "0 are not to be had here and 1 failed." in page


def test_a_check_whose_process_dies_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    answer = report.in_a_process("identity", True)
    assert (answer["outcome"], answer["reason"]) == (
        "failed",
        "its process ended with code 1: it said nothing",
    )


def test_the_file_names_no_user_no_host_and_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(socket, "gethostname", lambda: "analytical.engine.example")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ada"))
    report._names.cache_clear()

    def measure(size: Size) -> Sequence[Fact]:
        raise OSError(
            "ada@analytical: cannot open '/home/ada/.cache/x.npz' (see ~/log, analytical.engine.example)"
        )

    try:
        found = of_checks(monkeypatch, tells=measure)
    finally:
        report._names.cache_clear()
    text = json.dumps(found["whole"])
    assert not any(word in text for word in ("ada", "analytical", "/home", "npz", "~/"))
    assert "cannot open '(path)'" in found["tells"]["reason"]
    told = "12 GB/s, 3/4 of an NVIDIA A100/PCIe"
    assert report.without_names(told) == told


def test_every_check_has_a_file_that_measures() -> None:
    assert all(callable(child.measure_of(name)) for name in QUESTIONS)
    assert QUICK.is_quick
