"""A loop of the user's own on one simulated device, with its selector on the other."""

import json
from pathlib import Path

import pytest
from support.own_loops import pair_losses, selected, small_net, take_steps, vectors

import simulated


def test_a_loop_of_ones_own_selects_on_another_device_without_a_race(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(simulated.REPORT, str(tmp_path))
    monkeypatch.setenv(simulated.TRACE, "1")
    loader, optimizer = selected(
        vectors(),
        small_net().to("sim:0"),
        tmp_path / "run",
        mode="pipelined",
        selector="sim:1",
        settings={"selection.late": "wait"},
    )
    take_steps(loader, optimizer, pair_losses, 20)
    assert loader.close()["steps"] == 20
    (selector,) = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert [device["launches"] > 0 for device in selector["devices"]] == [False, True]
    assert [*simulated.races(), *selector["races"]] == []


def test_a_loop_and_its_selector_in_one_process_share_a_device_without_a_race(tmp_path: Path) -> None:
    loader, optimizer = selected(vectors(), small_net().to("sim:1"), tmp_path / "run")
    take_steps(loader, optimizer, pair_losses, 20)
    assert loader.close()["steps"] == 20
    assert simulated.num_launches(0) == 0
    assert simulated.races() == []
    assert simulated.slept_s(1) == 0.0, "the device of a user is not held back for a figure"
