"""Several selectors may have a device each; names are checked before anything is started."""

from pathlib import Path

import pytest
import torch

from sbpipe.config import resolve
from sbpipe.errors import ConfigError, DeviceError
from sbpipe.machine import cores, devices
from sbpipe.process import _selectors, selector_count
from sbpipe.trainer.setup import prepare
from tests.support.runs import small


def test_each_selector_is_started_with_its_own_device(tmp_path: Path) -> None:
    config = resolve({"selector.device": "cuda:1, cuda:2"})
    commands = [child.command for child in _selectors(config, tmp_path, selector_count(config))]
    told = [[word for word in command if word.startswith("selector.device")] for command in commands]
    assert told == [['selector.device="cuda:1"'], ['selector.device="cuda:2"']]


def test_one_name_is_that_of_all(tmp_path: Path) -> None:
    config = resolve({"selector.device": "cpu"})
    commands = [child.command for child in _selectors(config, tmp_path, selector_count(config, 3))]
    assert [command.count('selector.device="cpu"') for command in commands] == [1, 1, 1]


def test_the_trainer_takes_none_of_the_selectors_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        devices, "accelerators", lambda: [torch.device("cuda", number) for number in range(3)]
    )
    assert devices.plan("auto", "cuda:0,cuda:1") == ("cuda:2", "cuda:0")
    assert devices.plan("auto", "auto") == ("cuda:0", "cuda:1")
    assert cores.computes_on_cpu("cuda:0,cpu")
    assert not cores.computes_on_cpu("cuda:0,cuda:1")


def test_a_kind_of_device_alone_is_its_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [torch.device("cuda", number) for number in range(2)]
    monkeypatch.setattr(devices, "accelerators", lambda: there)
    assert devices.plan("cuda", "auto") == ("cuda:0", "cuda:1")
    assert devices.plan("auto", "cuda") == ("cuda:1", "cuda:0")
    assert devices.plan("gpu", "cpu") == ("gpu", "cpu")  # refused later, as it was written
    del there[1]
    assert devices.plan("cuda", "auto") == ("cuda:0", "cpu")
    assert devices.plan("auto", "cuda") == ("cpu", "cuda:0")


def test_another_number_of_selectors_than_of_names_is_refused() -> None:
    config = resolve({"selector.device": "cpu,cpu"})
    assert (selector_count(config), selector_count(config, 2)) == (2, 2)
    with pytest.raises(ConfigError, match=r"--selectors = 3: .*names 2 devices"):
        selector_count(config, 3)
    with pytest.raises(ConfigError, match="at least 1"):
        selector_count(config, 0)


@pytest.mark.parametrize(
    ("names", "message"), [("cpu,", "is not a device name"), ("cpu,auto", "'auto' means beside others")]
)
def test_names_that_are_none_are_refused(names: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve({"selector.device": names})


def test_a_device_that_is_not_there_ends_the_run_before_it_begins() -> None:
    with pytest.raises(DeviceError, match=r"selector\.device = 'cuda:77': no such device"):
        prepare(small(selector__device="cpu,cuda:77"))
