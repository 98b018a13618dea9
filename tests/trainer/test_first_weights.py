"""First weights: whatever names them, they are what training begins with, and what does not fit is named."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.runs import events_of, settings, small, train_inline
from support.runs import sbpipe as command

from sbpipe.config import Config, resolve
from sbpipe.errors import ConfigError
from sbpipe.export import export
from sbpipe.models import build_model
from sbpipe.trainer import checkpoint_file
from sbpipe.trainer.first_weights import fit_of, load_first_weights
from sbpipe.trainer.setup import prepare


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("first") / "run"
    train_inline(small(mode="inline"), path)
    return path


def trained(run: Path) -> dict[str, torch.Tensor]:
    return dict(checkpoint_file.read(run / "checkpoints" / "step-12.pt")["model"])


def begun_with(config: Config) -> dict[str, torch.Tensor]:
    return prepare(config).train_step.model.state_dict()


def source_of(run: Path, folder: Path, kind: str) -> Path:
    if kind == "run directory":
        return run
    if kind == "checkpoint":
        return run / "checkpoints" / "step-12.pt"
    exported = export(run, folder / "export").folder
    return exported if kind == "export" else exported / "model.safetensors"


@pytest.mark.parametrize("kind", ["run directory", "checkpoint", "export", "file of tensors"])
def test_training_begins_with_the_weights_of(run: Path, tmp_path: Path, kind: str) -> None:
    source, other_seed = source_of(run, tmp_path, kind), 5
    found = begun_with(small(mode="inline", seed=other_seed, train__init_from=str(source)))
    expected = trained(run)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_head_of_another_class_count_stays_fresh_and_that_is_told(run: Path, run_path: Path) -> None:
    given = {"mode": "inline", "data__classes": 12}
    config = small(**given, train__init_from=str(run))
    found, fresh, expected = begun_with(config), begun_with(small(**given)), trained(run)
    for name in expected:
        wanted = fresh[name] if name.startswith("head.") else expected[name]
        assert torch.equal(found[name], wanted), name
    train_inline(config, run_path)
    (note,) = events_of(run_path, "note")
    assert "head.weight, head.bias left fresh" in note["text"]


def test_a_pipelined_run_begins_with_them_too_and_a_resumed_one_does_not_need_the_file(
    run: Path, run_path: Path, tmp_path: Path
) -> None:
    file = source_of(run, tmp_path, "file of tensors")
    # A rate so small that the weights stay what they were to six digits.
    given = settings(train__init_from=str(file), optim__lr=1e-9, optim__weight_decay=0.0, train__steps=4)
    done = command("run", "--run-dir", str(run_path), *given)
    assert done.returncode == 0, done.stderr
    assert f"train.init_from = '{file}'" in done.stdout
    ended = checkpoint_file.read(run_path / "checkpoints" / "step-4.pt")["model"]
    expected = trained(run)
    assert torch.allclose(ended["head.weight"], expected["head.weight"], atol=1e-6)
    file.unlink()
    config = resolve({"train.init_from": str(file)})
    assert prepare(small(train__init_from=config.train.init_from), is_resumed=True).notes == ()


def test_what_does_not_fit_is_named_tensor_by_tensor() -> None:
    own = {"a.weight": torch.zeros(2, 3), "b.weight": torch.zeros(3), "head.weight": torch.zeros(4, 2)}
    parts = {"a.weight": "body", "b.weight": "body", "head.weight": "head"}
    given = {"a.weight": torch.zeros(2, 4), "c.weight": torch.zeros(1), "head.weight": torch.zeros(4, 2)}
    fit = fit_of(own, given, parts)
    assert fit.faults == [
        "c.weight is not in the model",
        "a.weight has shape [2, 4] there, [2, 3] in the model",
        "b.weight is missing",
    ]
    assert (fit.taken, fit.fresh) == (["head.weight"], [])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", "cannot be read"),
        ("noise.safetensors", "cannot be read"),
        (".", "neither checkpoints/ nor model.safetensors"),
        ("other.safetensors", r"does not fit model.name = 'small_cnn'.*x is not in the model"),
        ("torchvision:DEFAULT", "'small_cnn' is no model of torchvision"),
    ],
)
def test_a_source_that_is_none_is_refused_in_one_line(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise.safetensors").write_bytes(b"noise")
    save_file({"x": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(ConfigError, match=message):
        prepare(small(mode="inline", train__init_from=source))


# --- torchvision's own, in the format and the place of its downloads ------------------------------


def test_weights_of_torchvision_come_from_the_hub_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.models import ResNet18_Weights

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    file = tmp_path / "hub" / "checkpoints" / Path(ResNet18_Weights.IMAGENET1K_V1.url).name
    file.parent.mkdir(parents=True)
    theirs = resnet18(1000, seed=3).state_dict()
    # Their files of before BatchNorm counted its batches.
    torch.save({name: tensor for name, tensor in theirs.items() if "num_batches" not in name}, file)
    model = resnet18(10, seed=0)
    fresh_head = model.state_dict()["fc.weight"].clone()
    said = load_first_weights(model, "resnet18", "torchvision:IMAGENET1K_V1")
    assert torch.equal(model.state_dict()["conv1.weight"], theirs["conv1.weight"])
    assert torch.equal(model.state_dict()["fc.weight"], fresh_head)
    assert "fc.weight, fc.bias left fresh" in said
    file.write_bytes(b"noise")
    with pytest.raises(ConfigError, match=r"cannot be fetched or read.*put https://"):
        load_first_weights(model, "resnet18", "torchvision:DEFAULT")
    torch.save({"conv1.weight": Trap(tmp_path / "sprung")}, file)
    with pytest.raises(ConfigError, match="cannot be fetched or read"):
        load_first_weights(model, "resnet18", "torchvision:DEFAULT")
    assert not (tmp_path / "sprung").exists()


class Trap:
    """What runs code when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self._marker,)


def test_weights_that_torchvision_does_not_have_are_named_with_those_it_has() -> None:
    with pytest.raises(ConfigError, match="It has: torchvision:IMAGENET1K_V1, torchvision:DEFAULT"):
        load_first_weights(resnet18(10, seed=0), "resnet18", "torchvision:IMAGENET22K")


def resnet18(num_classes: int, seed: int) -> Any:
    config = resolve({"model.name": "resnet18"}).model
    return build_model(config, num_classes=num_classes, input_shape=(3, 32, 32), seed=seed)
