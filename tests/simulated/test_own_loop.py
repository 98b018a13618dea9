"""A loop of the user's own on one simulated device, with its selector on the other."""

import json
from pathlib import Path

import pytest
from support.own_loops import pair_losses, selected, small_net, take_steps, vectors
from support.runs import _PROCESSES, HANG_S

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
    assert simulated.races() == []
    assert simulated.slept_s(1) == 0.0, "the device of a user is not held back for a figure"


@pytest.mark.parametrize("mode", ["inline", "pipelined"])
def test_a_loop_whose_model_is_not_on_the_current_device_leaves_that_one_alone(
    mode: str, tmp_path: Path
) -> None:
    alone = _PROCESSES.Process(target=_loop_on_the_second, args=(mode, tmp_path), daemon=True)
    alone.start()
    alone.join(HANG_S)
    alone.kill()
    assert json.loads((tmp_path / "touched").read_text()) == [False, True]


def _loop_on_the_second(mode: str, path: Path) -> None:
    # Pipelined, nobody selects, and batches are filled: all else is as with a selector.
    loader, optimizer = selected(vectors(), small_net().to("sim:1"), path / "run", mode=mode)
    take_steps(loader, optimizer, pair_losses, 6)
    loader.state_dict()
    loader.close()
    (path / "touched").write_text(json.dumps([simulated.is_touched(index) for index in range(2)]))
