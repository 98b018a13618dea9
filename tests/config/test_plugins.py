"""A user's model, loss and data are found by one rule, and a mistake in naming them is told in one way."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from sbpipe.config import DataConfig, LossConfig, ModelConfig
from sbpipe.config.plugins import import_plugin
from sbpipe.data.own import read_own
from sbpipe.errors import ConfigError
from sbpipe.models import build_model
from sbpipe.models.losses import build_loss

MODULE = """
from torch import nn

def model(num_classes, input_shape):
    return nn.Linear(input_shape[0], num_classes)

def loss(outputs, targets):
    return (outputs - targets[:, None]).square().mean(1)

class Pairs(list):
    num_classes = 3

def data():
    import imported_late
    return imported_late.splits(Pairs)

def offline():
    raise RuntimeError("the database is down")

def with_path(path):
    return path

number = 3
"""
LATE = """
import torch
def splits(kind):
    return kind([(torch.zeros(2), 0)]), kind([(torch.zeros(2), 1)])
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the user's modules, one of them named as a library that is installed too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "installed")])
    before = set(sys.modules)
    files = {
        "mine": MODULE,
        "imported_late": LATE,
        "needy": "import a_library_nobody_has",
        "broken": "from math import no_such_name",
        "misspelt": "def f(:",
        "offline": "raise OSError('no route to host')",
        "twice": "def where(): return 'here'",
        "installed/twice": "def where(): return 'installed'",
    }
    for name, text in files.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def build_mine(spec: str) -> object:
    return build_model(ModelConfig(name=spec), num_classes=3, input_shape=(2,), seed=0)


def loss_of_mine(spec: str) -> object:
    return build_loss(LossConfig(name=spec))


def data_of_mine(spec: str) -> object:
    return read_own(DataConfig(name=spec, workers=0))


EACH = pytest.mark.parametrize(
    ("key", "use"),
    [("model.name", build_mine), ("loss.name", loss_of_mine), ("data.name", data_of_mine)],
    ids=["model", "loss", "data"],
)


@EACH
def test_each_is_found_in_the_working_directory(key: str, use: Callable[[str], object]) -> None:
    assert use(f"mine:{key.partition('.')[0]}") is not None


@EACH
@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("mine:", "is not of the form module:function"),
        (":model", "is not of the form module:function"),
        ("mine.py:a-b", "is not of the form module:function"),
        ("nowhere:build", "there is no module 'nowhere'. .*start sbpipe where nowhere.py lies"),
        ("nowhere.models:build", "there is no module 'nowhere'"),
        ("mine.inner:build", "there is no module 'mine.inner'"),
        ("needy:f", "module 'needy' needs 'a_library_nobody_has', which is missing. Install a_library"),
        ("broken:f", "module 'broken' cannot be imported .*no_such_name"),
        ("misspelt:f", "module 'misspelt' cannot be imported .SyntaxError: .*misspelt.py, line 1"),
        ("offline:f", "cannot be imported .OSError: no route to host, .*offline.py line 1"),
        ("mine:modle", "has no 'modle'. Its callables are: Pairs, data, loss, model, offline, with_path"),
        ("mine:number", "'number' is of type int, not callable"),
    ],
)
def test_each_tells_a_wrong_name_alike(key: str, use: Callable[[str], object], spec: str, match: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} = '{spec}': .*{match}"):
        use(spec)


def test_the_working_directory_is_searched_before_what_is_installed() -> None:
    assert import_plugin("model.name", "twice:where")() == "here"


def test_the_working_directory_stays_on_the_path_behind_everything_else(here: Path) -> None:
    before = list(sys.path)
    import_plugin("model.name", "mine:model")
    import_plugin("loss.name", "mine:loss")
    assert sys.path == [*before, str(here)]


def test_a_working_directory_that_is_on_the_path_already_keeps_its_place(here: Path) -> None:
    sys.path.insert(1, str(here))
    before = list(sys.path)
    import_plugin("model.name", "mine:model")
    assert sys.path == before


def test_a_users_loss_gives_what_it_says() -> None:
    loss = build_loss(LossConfig(name="mine:loss"))
    assert loss(torch.ones(2, 3), torch.tensor([1, 3])).tolist() == [0.0, 4.0]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("offline", "raised RuntimeError: the database is down, .*mine.py line 18"),
        ("with_path", "raised TypeError: .*'path'.*It is called without arguments"),
    ],
)
def test_a_data_function_that_raises_is_told_with_its_line(function: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"data.name = 'mine:{function}': {says}"):
        data_of_mine(f"mine:{function}")
