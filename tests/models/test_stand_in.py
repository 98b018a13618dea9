"""What a stand-in for the model shows of a user's losses: outputs, residuals, classes."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sbpipe.models.residuals import closed_form
from sbpipe.models.stand_in import StandIn, classified, residuals_of


class Wrapped(nn.Module):
    """A net whose answer is a dict, with an attribute that losses ask for."""

    scale = 2.0

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(5, num_outputs)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"logits": self.head(x), "length": len(x)}


def shown(losses: Any, model: nn.Module, batch: Any) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    stand_in = StandIn(model, model)
    with torch.enable_grad():
        found = stand_in.evaluate(losses, batch)
    return found, stand_in.gradients(found)


def test_cross_entropy_is_recognised_and_its_residuals_are_those_of_the_closed_form() -> None:
    x, y, model = torch.randn(6, 5), torch.tensor([0, 3, 1, 2, 2, 0]), Wrapped(4)

    def losses(model: Any, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch)["logits"], y, reduction="none")

    found, gradients = shown(losses, model, x)
    known = classified(gradients)
    assert known is not None
    assert known.targets.tolist() == y.tolist()
    assert torch.equal(residuals_of(found, gradients, known), closed_form(model(x)["logits"].detach(), y))


def test_of_another_loss_the_residual_is_its_gradient_at_the_outputs() -> None:
    x, wanted, model = torch.randn(6, 5), torch.randn(6, 4), Wrapped(4)

    def losses(model: Any, batch: Any) -> Tensor:
        return (model(batch)["logits"] * model.scale - wanted).square().sum(1)

    found, gradients = shown(losses, model, x)
    assert classified(gradients) is None
    expected = 4.0 * (2.0 * model(x)["logits"] - wanted)
    assert torch.allclose(residuals_of(found, gradients, None), expected.detach(), atol=1e-5)


def test_long_residuals_are_shortened_and_keep_their_distances() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(24, 7, 1000, generator=generator)
    short = residuals_of(torch.zeros(24), [(tokens, tokens)], None)
    assert short.shape == (24, 128)
    exact, kept = (torch.pdist(rows.flatten(1)) for rows in (tokens, short))
    assert torch.allclose(kept.mean() / exact.mean(), torch.tensor(1.0), atol=0.1)


def test_losses_that_show_no_outputs_are_their_own_residuals() -> None:
    def losses(model: Any, batch: Any) -> Tensor:
        return model.head(batch).sum(1)  # past the model's own forward pass

    found, gradients = shown(losses, Wrapped(4), torch.randn(6, 5))
    assert residuals_of(found, gradients, classified(gradients)).shape == (6, 1)


def test_the_models_parameters_and_attributes_are_the_stand_ins() -> None:
    model = Wrapped(3)
    stand_in = StandIn(model, model)
    assert next(stand_in.parameters()) is model.head.weight
    assert stand_in.scale == 2.0
    assert not stand_in.training
