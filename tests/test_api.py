"""A run from Python: functions where settings have names, any in one process, in two those of modules."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.own_data import enter_folder
from support.runs import SMALL
from torch import nn

import sbpipe
from sbpipe.config.objects import named
from sbpipe.config.plugins import import_plugin
from sbpipe.errors import ConfigError
from sbpipe.runs.reader import read_run

HERE = SMALL | {"mode": "inline", "model.options": {}, "train.steps": 4}


class Pairs(list[tuple[torch.Tensor, int]]):
    num_classes = 2


def data() -> tuple[Pairs, Pairs]:
    def pairs(number: int) -> Pairs:
        return Pairs((torch.full((3,), float(i % 2)), i % 2) for i in range(number))

    return pairs(64), pairs(8)


def test_functions_of_any_kind_train_in_one_process(run_path: Path) -> None:
    widths = []

    def model(num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
        widths.append(input_shape)
        return nn.Linear(input_shape[0], num_classes)

    given: dict[str, Any] = {
        "data.name": data,
        "model.name": model,
        "loss.name": lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="none"),
        "eval.metric": lambda outputs, targets: outputs.argmax(1) == targets,
    }
    summary = sbpipe.train(HERE | given, run_path)
    assert summary["steps"] == 4
    assert summary["eval.metric_name"] == "metric"
    assert summary["eval.metric"] == pytest.approx(1.0 - summary["eval.error"])
    assert set(widths) == {(3,)}
    assert read_run(run_path).setting("data.name") == f"{__name__}:data"


def test_a_function_of_a_module_becomes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_folder(tmp_path, monkeypatch, api_mine="class Nets:\n    @staticmethod\n    def build(): pass\n")
    function = import_plugin("model.name", "api_mine:Nets.build")
    assert named({"model.name": function, "seed": 3}) == (
        {"model.name": "api_mine:Nets.build", "seed": 3},
        [],
    )


def test_a_function_that_no_other_process_can_import_is_refused_with_the_way_out(run_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"loss\.name = 'held:loss\.name'.*Set mode = 'inline'"):
        sbpipe.train(HERE | {"mode": "lockstep", "loss.name": lambda outputs, targets: outputs}, run_path)
    assert not run_path.exists()


def test_trackers_of_a_run_in_one_process_get_a_process(run_path: Path) -> None:
    given = SMALL | {"mode": "inline", "train.steps": 4, "trackers.tensorboard": True}
    assert sbpipe.train(given, run_path)["steps"] == 4
    assert list((run_path / "tensorboard").iterdir())


def test_functions_of_this_process_alone_are_refused_where_trackers_need_another(run_path: Path) -> None:
    loss = {"loss.name": lambda outputs, targets: outputs, "trackers.tensorboard": True}
    with pytest.raises(ConfigError, match=r"a run with trackers.*Leave out trackers\.\*"):
        sbpipe.train(HERE | loss, run_path)
    assert not run_path.exists()


def test_a_setting_that_takes_no_function_says_which_do() -> None:
    with pytest.raises(ConfigError, match=r"optim\.name.*Those are data\.name, model\.name, loss\.name"):
        named({"optim.name": torch.optim.SGD})


def test_a_held_function_is_asked_for_again_by_a_program_that_does_not_have_it() -> None:
    with pytest.raises(ConfigError, match=r"Give it to sbpipe\.train again"):
        import_plugin("model.name", "held:another")


PROGRAM = """
import sbpipe, sys, torch
def model(num_classes, input_shape):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(num_classes))
given = {"model.name": model, "data.examples": 300, "data.test_examples": 50, "train.steps": 3,
         "train.batch_size": 16, "mode": sys.argv[1]}
try:
    print("steps", sbpipe.train(given, sys.argv[2])["steps"])
except sbpipe.errors.ConfigError as error:
    print("refused", error)
"""


def test_a_program_may_give_its_own_functions(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    said = [
        subprocess.run(
            [sys.executable, "program.py", mode, str(tmp_path / mode)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)},
            check=False,
        ).stdout
        for mode in ("inline", "pipelined")
    ]
    assert "steps 3" in said[0]
    assert "refused model.name = '__main__:model'" in said[1]
