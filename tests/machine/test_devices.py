"""Devices by name where something is missing: an instance of a cut GPU, a driver, a way between devices."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sbpipe
from sbpipe.errors import DeviceError
from sbpipe.machine import devices
from sbpipe.trainer.ranks.group import Group


def test_a_second_mig_instance_is_told_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1,MIG-2")
    with pytest.raises(DeviceError, match=r"cuda:7.*one MIG instance.*CUDA_VISIBLE_DEVICES of its own"):
        devices.resolve("selector.device", "cuda:7")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(DeviceError, match=r"cuda:7.*This machine has [^.]*$"):
        devices.resolve("selector.device", "cuda:7")


def test_ranks_on_a_device_without_collectives_are_refused_in_words() -> None:
    device = torch.device("meta")
    with pytest.raises(DeviceError, match=r"ranks on meta.*gradients.*train.device = 'cpu'"):
        Group(0, 2, device, batch_size=16, wait_s=1.0)


@pytest.mark.parametrize(("has_node", "has_build"), [(True, True), (True, False), (False, True)])
def test_an_intel_gpu_needs_a_render_node_and_a_torch_that_knows_it(
    has_node: bool, has_build: bool, tmp_path: Path
) -> None:
    (tmp_path / "dev" / "dri").mkdir(parents=True)
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('nobody imports it here')")
    if has_node:
        (tmp_path / "dev" / "dri" / "renderD128").touch()
    if has_build:
        (tmp_path / "torch" / "lib" / "libtorch_xpu.so").touch()
    program = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[2:]\n"
        "from sbpipe.machine import cores; print(cores._may_have_xpu(Path(sys.argv[1])))"
    )
    root = str(Path(sbpipe.__file__).parent.parent)
    found = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "dev"), str(tmp_path), root],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == str(has_node and has_build)
