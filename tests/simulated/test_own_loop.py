"""A loop of the user's own on one simulated device, with its selector on the other."""

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from support.own_loops import pair_losses, selected, small_net, take_steps, vectors
from support.runs import _PROCESSES, HANG_S
from torch import nn

import simulated
from sbpipe.ownloop.handed import LoopError
from sbpipe.ownloop.loader import SelectedLoader
from sbpipe.trainer.step_outcome import DivergedError


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


def test_kernels_of_a_users_own_that_lie_channels_last_are_scored_with_as_they_are(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Unflatten(1, (4, 2, 2)), nn.Conv2d(4, 8, 3, padding=1), nn.Flatten())
    model.append(nn.Linear(32, 4)).to("sim:0", memory_format=torch.channels_last)
    loader, optimizer = selected(vectors(), model, tmp_path / "run")
    take_steps(loader, optimizer, pair_losses, 20)
    summary = loader.close()
    assert summary["staleness.max"] == 0
    assert summary["fidelity.spearman"] > 0.999, "a score is then the loss itself"


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


def train_on(
    batches: Iterable[Any], loader: SelectedLoader, optimizer: torch.optim.Optimizer, last: int
) -> None:
    """A loop that never looks at its losses; those of the last step are no numbers."""
    for number, batch in enumerate(batches, 1):
        losses = pair_losses(loader.model, batch)
        loader.weigh(losses * (float("nan") if number == last else 1.0)).backward()
        optimizer.step()


def failures(path: Path) -> list[str]:
    lines = (path / "events-trainer.jsonl").read_text().splitlines()
    return [event["error"] for event in map(json.loads, lines) if event["kind"] == "failed"]


def test_a_last_step_that_diverged_on_a_device_fails_at_the_end_of_the_pass(tmp_path: Path) -> None:
    loader, optimizer = selected(vectors(), small_net().to("sim:0"), tmp_path / "run")
    with pytest.raises(DivergedError, match="the training loss is nan at step 3"):
        train_on(loader, loader, optimizer, last=4)
    with pytest.raises(LoopError, match="the run has ended: the run has diverged"):
        next(iter(loader))
    assert loader.close() == {}
    assert not (tmp_path / "run" / "summary.json").exists()
    assert len(failures(tmp_path / "run")) == 1


def test_a_last_step_that_diverged_on_a_device_fails_when_the_loader_is_closed(tmp_path: Path) -> None:
    loader, optimizer = selected(vectors(), small_net().to("sim:0"), tmp_path / "run")
    train_on(islice(loader, 2), loader, optimizer, last=2)
    with pytest.raises(DivergedError, match="the training loss is nan at step 1"):
        loader.close()
    assert not (tmp_path / "run" / "summary.json").exists()
    assert len(failures(tmp_path / "run")) == 1


def test_a_program_that_ends_after_a_step_that_diverged_on_a_device_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    loader, optimizer = selected(vectors(), small_net().to("sim:0"), path)
    train_on(islice(loader, 2), loader, optimizer, last=2)
    loader.leave()  # as at the end of the program
    assert capsys.readouterr().err.startswith(
        "sbpipe: the run has diverged: the training loss is nan at step 1"
    )
    assert not (path / "summary.json").exists()
    assert len(failures(path)) == 1
