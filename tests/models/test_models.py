"""Models: known sizes, reproducible first weights, and mistakes that are named before anything is started."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sbpipe.config import ModelConfig
from sbpipe.errors import ConfigError, ModelError
from sbpipe.models import build_model
from sbpipe.models.build import BUILDERS

# Small members of the large families, so that a backward pass stays cheap.
SMALL_OPTIONS: dict[str, dict[str, Any]] = {
    "resnet18_cifar": {"width": 8},
    "wide_resnet": {"depth": 10, "widen_factor": 1, "dropout": 0.1},
    "mobilenet_v2_cifar": {"width_mult": 0.25, "dropout": 0.1},
    "densenet_cifar": {"depth": 10, "growth": 4, "dropout": 0.1},
}


def build(
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    shape: tuple[int, ...] = (3, 32, 32),
    seed: int = 0,
) -> nn.Module:
    return build_model(
        ModelConfig(name=name, options=dict(options or {})), num_classes=10, input_shape=shape, seed=seed
    )


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("small_cnn", 246_682),
        ("small_resnet", 272_474),
        ("resnet18_cifar", 11_173_962),
        ("wide_resnet", 36_479_194),
        ("mobilenet_v2_cifar", 2_236_682),
        ("densenet_cifar", 769_162),
    ],
)
def test_each_architecture_has_its_published_number_of_parameters(name: str, expected: int) -> None:
    assert num_parameters(build(name)) == expected


def test_our_mobilenet_differs_from_torchvisions_only_in_strides() -> None:
    assert num_parameters(build("mobilenet_v2_cifar")) == num_parameters(build("mobilenet_v2"))


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
def test_every_parameter_of_every_model_learns_from_images_of_any_channels(
    name: str, shape: tuple[int, ...]
) -> None:
    model = build(name, SMALL_OPTIONS.get(name), shape=shape)
    outputs = model(torch.randn(4, *shape, generator=torch.Generator().manual_seed(0)))
    torch.autograd.backward(outputs.square().sum())
    assert all(
        p.grad is not None and p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in model.parameters()
    )


@pytest.mark.parametrize("name", BUILDERS)
def test_no_model_shrinks_a_32_pixel_image_below_4_pixels(name: str) -> None:
    features = build(name, SMALL_OPTIONS.get(name)).eval().get_submodule("features")
    assert features(torch.zeros(1, 3, 32, 32)).shape[-1] >= 4


def test_small_cnn_learns_a_batch_by_heart() -> None:
    model, generator = build("small_cnn"), torch.Generator().manual_seed(1)
    images, classes = torch.randn(32, 3, 16, 16, generator=generator), torch.arange(32) % 10
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(25):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(images), classes))
        optimizer.step()
    assert (model(images).argmax(1) == classes).all()


@pytest.mark.parametrize("name", ["small_cnn", "shufflenet_v2_x0_5"])
def test_first_weights_are_a_function_of_the_seed_alone(name: str) -> None:
    first = build(name, seed=3).state_dict()
    torch.rand(7)
    again, other = build(name, seed=3).state_dict(), build(name, seed=4).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", ["small_cnn", "alexnet"])
def test_building_leaves_the_global_random_state_untouched(name: str) -> None:
    before = torch.get_rng_state()
    build(name, shape=(3, 64, 64))
    assert torch.equal(before, torch.get_rng_state())


def test_a_failed_build_leaves_the_global_random_state_untouched() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ModelError, match=r"cannot take inputs"):
        build("shufflenet_v2_x0_5", shape=(1, 32, 32))
    assert torch.equal(before, torch.get_rng_state())


def test_a_fresh_model_is_in_training_mode_with_untouched_statistics_on_the_cpu() -> None:
    with torch.device("meta"):
        model = build("small_cnn")
    assert all(module.training for module in model.modules())
    assert all(
        value.sum() == 0
        for key, value in model.state_dict().items()
        if key.endswith(("running_mean", "num_batches_tracked"))
    )


def test_an_unknown_name_is_answered_with_the_nearest_known_one() -> None:
    with pytest.raises(
        ModelError, match=r"'resnet18_cfar': unknown model. The nearest known name is 'resnet18_cifar'"
    ):
        build("resnet18_cfar")
    with pytest.raises(ModelError, match=r"nearest known name is 'resnet50'"):
        build("ResNet50")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "wide_resnet",
            {"widen": 2},
            r"options.widen = 2: wide_resnet has no such option.*are: depth, dropout, widen_factor",
        ),
        ("wide_resnet", {"depth": 27}, r"options.depth = 27: must be 6n \+ 4"),
        ("wide_resnet", {"depth": "28"}, "options.depth = '28': must be a whole number"),
        ("small_resnet", {"depth": 21}, r"options.depth = 21: must be 6n \+ 2"),
        ("densenet_cifar", {"depth": 101}, r"options.depth = 101: must be 6n \+ 4"),
        ("densenet_cifar", {"compression": 1.5}, "options.compression = 1.5: must be above 0 and at most 1"),
        ("small_cnn", {"width": 0}, "options.width = 0: must be a whole number from 1 to 4096"),
        ("mobilenet_v2_cifar", {"dropout": 1.5}, "mobilenet_v2_cifar cannot be built with them"),
        ("resnet18", {"widht": 2}, "options.widht = 2: resnet18 has no such option.*width_per_group"),
        (
            "mobilenet_v3_small",
            {"widht": 2},
            "options.widht = 2: mobilenet_v3_small has no such option.*width_mult",
        ),
        ("resnet18", {"groups": 3}, "resnet18 cannot be built with them"),
    ],
)
def test_a_bad_option_is_named_together_with_what_is_accepted(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        build(name, options)


def test_torchvisions_tuple_answering_models_train_without_their_auxiliary_heads() -> None:
    model = build("googlenet")
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_inputs_a_model_cannot_take_are_refused_at_the_start() -> None:
    with pytest.raises(
        ModelError, match=r"'shufflenet_v2_x0_5': cannot take inputs of shape \[1, 32, 32\].*3 channels"
    ):
        build("shufflenet_v2_x0_5", shape=(1, 32, 32))
    with pytest.raises(
        ModelError, match=r"small_cnn.*takes images \[channels, height, width\].*shape \[784\]"
    ):
        build("small_cnn", shape=(784,))


PLUGIN = """
from torch import nn
class Mixed(nn.Sequential):
    def forward(self, x):
        return {"logits": super().forward(x)}
def mixed(num_classes, input_shape, hidden=4):
    first, last = nn.Linear(input_shape[0], hidden), nn.Linear(hidden, num_classes)
    return Mixed(nn.Flatten(), first, nn.BatchNorm1d(hidden).eval(), last)
def tokens(num_classes, input_shape, **options):
    return nn.Sequential(nn.Embedding(5, num_classes))
def no_model(num_classes, input_shape):
    return "model"
def other(classes):
    return nn.Linear(1, classes)
constant = 3
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's module in the current directory; its name is new each time: Python imports a name once."""
    name = f"plugin_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    return name


def test_a_users_model_gets_classes_shape_and_options_and_may_answer_anything(plugin: str) -> None:
    model = build(f"{plugin}:mixed", {"hidden": 6}, shape=(8,))
    assert model(torch.zeros(2, 8))["logits"].shape == (2, 10)
    assert [module.training for module in model.modules()] == [True, True, True, False, True]


def test_a_users_model_may_take_whole_numbers(plugin: str) -> None:
    config = ModelConfig(name=f"{plugin}:tokens", options={"anything": 1})
    model = build_model(config, num_classes=10, input_shape=(7,), seed=0, input_dtype=torch.int64)
    assert model(torch.zeros(2, 7, dtype=torch.int64)).shape == (2, 7, 10)


def test_mistakes_in_a_users_model_are_named(plugin: str) -> None:
    with pytest.raises(ModelError, match=r"options.hiden = 6: .*has no such option.*are: hidden"):
        build(f"{plugin}:mixed", {"hiden": 6}, shape=(8,))
    with pytest.raises(ModelError, match=r"returned a str. Return a torch.nn.Module"):
        build(f"{plugin}:no_model")
    with pytest.raises(
        ModelError, match=r"takes \(classes\). Give it the keywords num_classes and input_shape"
    ):
        build(f"{plugin}:other")
    with pytest.raises(ModelError, match=r"options.num_classes = 3"):
        build(f"{plugin}:tokens", {"num_classes": 3})


def test_a_plugin_that_cannot_be_found_says_what_was_found(plugin: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"model.name = .*has no 'mixd'. Its callables are: Mixed, mixed, no_model, other, tokens",
    ):
        build(f"{plugin}:mixd")
    with pytest.raises(ConfigError, match=r"'constant' is of type int, not callable"):
        build(f"{plugin}:constant")
