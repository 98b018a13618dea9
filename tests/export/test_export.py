"""Exported weights are those of the checkpoint, and the folder is enough to use them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.own_data import enter_folder
from support.runs import small, train_inline

from sbpipe.config import digest
from sbpipe.errors import MissingExtra, RunDirError
from sbpipe.export import export, onnx_file
from sbpipe.export.load import load, predict
from sbpipe.models import build_model
from sbpipe.trainer import checkpoint_file
from sbpipe.trainer.setup import prepare

CONFIG = small(mode="inline", view__flip=True)
MINE = """
import torch

class Pairs(list):
    classes = ["low", "high"]

def data():
    def pairs(number):
        return Pairs((torch.full((3,), float(i % 2)), i % 2) for i in range(number))
    return pairs(64), pairs(8)

def model(num_classes, input_shape, width=2):
    return torch.nn.Sequential(
        torch.nn.Linear(input_shape[0], width), torch.nn.ReLU(), torch.nn.Linear(width, num_classes)
    )
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "run"
    train_inline(CONFIG, path)
    return path


def test_exported_weights_answer_as_the_checkpointed_model_does_bit_for_bit(run: Path) -> None:
    data = prepare(CONFIG).data
    model = build_model(
        CONFIG.model, num_classes=data.num_classes, input_shape=data.input_shape, seed=CONFIG.seed
    )
    model.load_state_dict(checkpoint_file.read(run / "checkpoints" / "step-12.pt")["model"])
    normalised = data.test.batch(np.arange(20), 0).inputs
    exported, card = load(export(run).folder)
    pixels = unnormalised(normalised, card)
    with torch.inference_mode():
        expected = model.eval()(normalised.contiguous(memory_format=torch.channels_last))
    assert torch.equal(predict(exported, card, pixels), expected)


def unnormalised(inputs: torch.Tensor, card: dict[str, Any]) -> torch.Tensor:
    mean, std = (torch.tensor(card["input"][name])[:, None, None] for name in ("mean", "std"))
    return (inputs * std + mean).round().to(torch.uint8)


def test_the_card_says_what_a_user_of_the_model_must_know(run: Path) -> None:
    card = json.loads((export(run).folder / "card.json").read_text())
    assert card["model"] == {"name": "small_cnn", "options": {"width": 8}}
    assert (card["num_classes"], card["classes"]) == (10, [str(k) for k in range(10)])
    assert (card["input"]["shape"], card["input"]["dtype"]) == ([3, 32, 32], "uint8")
    assert (card["step"], card["digest"]) == (12, digest(CONFIG))


def test_the_program_beside_the_weights_runs_and_names_classes(run: Path, tmp_path: Path) -> None:
    folder = export(run, tmp_path / "out").folder
    inputs = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), np.uint8)
    np.save(tmp_path / "inputs.npy", inputs)
    done = subprocess.run(
        [sys.executable, "load.py", tmp_path / "inputs.npy"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outputs = predict(*load(folder), inputs)
    expected = [f"{row.tolist()} {int(row.argmax())}" for row in outputs]
    assert done.stdout.splitlines() == expected


def test_a_model_and_data_of_the_users_own_are_exported_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_folder(tmp_path, monkeypatch, exported_mine=MINE)
    own = {"data__name": "exported_mine:data", "model__name": "exported_mine:model"}
    config = small(mode="inline", data__workers=0, model__options={"width": 4}, **own)
    train_inline(config, tmp_path / "run")
    model, card = load(export(tmp_path / "run").folder)
    assert card["classes"] == ["low", "high"]
    assert card["input"] == {"shape": [3], "dtype": "float32", "mean": None, "std": None}
    assert predict(model, card, np.zeros((2, 3), np.float32)).shape == (2, 2)


def test_one_checkpoint_alone_is_enough(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.pt"
    alone.write_bytes((run / "checkpoints" / "step-12.pt").read_bytes())
    done = export(alone)
    assert (done.folder, done.step) == (tmp_path / "export", 12)
    weights, expected = load(done.folder)[0].state_dict(), checkpoint_file.read(alone)["model"]
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_what_cannot_be_exported_is_told(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="holds no checkpoint"):
        export(tmp_path)
    (tmp_path / "noise.pt").write_bytes(b"noise")
    with pytest.raises(RunDirError, match="no checkpoint that can be used"):
        export(tmp_path / "noise.pt")
    with pytest.raises(RunDirError, match="cannot be written"):
        export(run, tmp_path / "noise.pt")
    old = checkpoint_file.read(run / "checkpoints" / "step-12.pt")
    del old["card"], old["step"], old["format"]
    checkpoint_file.write(tmp_path / "old.pt", 12, checkpoint_file.frozen(old), lambda: None)
    with pytest.raises(RunDirError, match="does not say what its model is"):
        export(tmp_path / "old.pt")


def test_a_missing_library_for_onnx_is_told_before_anything_is_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_file, "LIBRARIES", ("no_such_library",))
    with pytest.raises(MissingExtra, match=r"sbpipe\[onnx\]"):
        export(run, tmp_path / "out", with_onnx=True)
    assert not (tmp_path / "out").exists()


def test_onnx_answers_as_the_model_does(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    reference = pytest.importorskip("onnx.reference")
    folder = export(run, tmp_path / "out", with_onnx=True).folder
    model, _ = load(folder)
    inputs = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    (outputs,) = reference.ReferenceEvaluator(str(folder / "model.onnx")).run(
        None, {"inputs": inputs.numpy()}
    )
    with torch.inference_mode():
        assert np.allclose(outputs, model(inputs).numpy(), atol=1e-4)
