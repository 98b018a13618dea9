"""What a model would take is told without making it."""

import pytest

from sbpipe.config import ModelConfig
from sbpipe.models import build_model, weigh_model
from sbpipe.models.build import BUILDERS


@pytest.mark.parametrize("name", [*BUILDERS, "resnet18", "vit_b_32"])
def test_a_model_weighs_what_its_parameters_and_buffers_take(name: str) -> None:
    config, size = ModelConfig(name, {}), 224 if name.startswith("vit") else 32
    model = build_model(config, num_classes=10, input_shape=(3, size, size), seed=0)
    taken = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    # Counters that are made from a number, and what is made only to be thrown away, may differ.
    assert weigh_model(config, num_classes=10, input_shape=(3, size, size)) == pytest.approx(taken, rel=0.02)
