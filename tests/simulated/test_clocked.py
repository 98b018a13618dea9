"""What a logical clock promises on an accelerator: a resumed run is the whole one. Who touches a device."""

import json
from pathlib import Path

import pytest
import torch
from support.digests import CUT_AT, resumed
from support.runs import _PROCESSES, HANG_S, events_of, small, train_inline, train_over

import simulated
from sbpipe.config import Config
from sbpipe.errors import DeviceError
from sbpipe.trainer.ranks.group import Group


def on_sim(**changes: object) -> Config:
    return small(mode="inline", train__device="sim:0", selector__device="sim:0", **changes)


@pytest.mark.parametrize("policy", ["infobatch", "steady"])
def test_a_resumed_run_is_the_whole_one(policy: str, tmp_path: Path) -> None:
    # Long enough that the losses of the step before the checkpoint decide what is selected after it.
    given = {"selection__policy": policy, "data__examples": 96, "train__steps": 3 * CUT_AT}
    config = on_sim(**given, checkpoint__every=CUT_AT, checkpoint__keep=9)
    whole = train_inline(config, tmp_path / "whole")
    assert resumed(config, tmp_path / "whole")["weights.digest"] == whole["weights.digest"]
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert "deterministic" in events_of(tmp_path / "whole", "note")[0]["text"]


def test_an_infobatch_run_selects_as_on_the_cpu(tmp_path: Path) -> None:
    given = {"selection__policy": "infobatch", "data__examples": 96, "train__steps": 3 * CUT_AT}
    there = train_inline(on_sim(**given), tmp_path / "sim")
    here = train_inline(small(mode="inline", **given), tmp_path / "cpu")
    assert there["weights.digest"] == here["weights.digest"]


@pytest.mark.parametrize("mode", ["inline", "pipelined"])
def test_a_trainer_on_the_second_device_touches_only_that(mode: str, tmp_path: Path) -> None:
    config = small(mode=mode, train__device="sim:1", selector__device="sim:1", train__steps=4)
    alone = _PROCESSES.Process(target=_train, args=(config, tmp_path), daemon=True)
    alone.start()
    alone.join(HANG_S)
    alone.kill()
    assert json.loads((tmp_path / "touched").read_text()) == [False, True]


def _train(config: Config, path: Path) -> None:
    """In a process of its own, whose selector answers in the dispatcher's thread."""
    torch.set_num_threads(1)
    train_over(config, path / "run") if config.mode == "pipelined" else train_inline(config, path / "run")
    (path / "touched").write_text(json.dumps([simulated.is_touched(index) for index in range(2)]))


def test_ranks_need_collectives_that_these_devices_lack() -> None:
    with pytest.raises(DeviceError, match=r"ranks on sim:0.*gradients"):
        Group(0, 2, torch.device("sim", 0), batch_size=16, wait_s=1.0)
