"""Gradients of batches and of parts of them, on a model trained for a while on the embedded data.

Everything is in training mode, as in a train step: a part is normalised by its own statistics. Parts are
chosen by the losses of the whole batch's forward pass.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sbpipe.config import Config, resolve
from sbpipe.data import Data, load_data
from sbpipe.machine.layout import laid_out, layout_of
from sbpipe.models import build_model
from sbpipe.models.losses import build_loss

Loss = Callable[[Tensor, Tensor], Tensor]
SETTINGS = {
    "data.name": "embedded",
    "data.examples": 6_000,
    "data.test_examples": 100,
    "optim.lr": 0.1,
    "train.batch_size": 128,
}
_CPU = torch.device("cpu")


def similarities(
    shares: Sequence[float], *, seeds: int, batches: int, epochs: float
) -> dict[str, list[float]]:
    """For each name of `similarity.key`, one number per batch and seed."""
    from sbpipe.studies.reproduce.experiments.similarity import MEASURES, key

    found: dict[str, list[float]] = {
        key(measure, share, chosen): []
        for measure in MEASURES
        for share in shares
        for chosen in ("high", "random")
    }
    for seed in range(seeds):
        config = resolve(SETTINGS | {"seed": seed})
        data = load_data(config.data, config.view, seed=seed, device=_CPU, batch_size=config.train.batch_size)
        model, loss = trained(config, data, epochs), build_loss(config.loss)
        generator = np.random.default_rng(seed)
        for _ in range(batches):
            inputs, targets = data.train.batch(
                generator.choice(data.train.num_examples, config.train.batch_size, replace=False), 0
            )
            whole, losses = gradient(model, loss, laid_out(inputs, layout_of(model)), targets)
            for share in shares:
                for chosen, places in parts(losses, share, generator).items():
                    part, _ = gradient(
                        model, loss, laid_out(inputs[places], layout_of(model)), targets[places]
                    )
                    for measure, value in zip(
                        MEASURES, (cosine(part, whole), same_sign(part, whole)), strict=True
                    ):
                        found[key(measure, share, chosen)].append(value)
    return found


def parts(losses: Tensor, share: float, generator: np.random.Generator) -> dict[str, Tensor]:
    """The positions of a share of a batch: those of highest loss, and as many at random."""
    count = max(1, round(share * len(losses)))
    return {
        "high": losses.argsort(descending=True)[:count],
        "random": torch.from_numpy(generator.choice(len(losses), count, replace=False)),
    }


def gradient(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the mean loss as one vector, and the losses."""
    losses = loss(model(inputs), targets)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    pieces = torch.autograd.grad(losses.mean(), parameters)
    return torch.cat([piece.flatten() for piece in pieces]), losses.detach()


def cosine(one: Tensor, other: Tensor) -> float:
    """The cosine of the angle between two gradients."""
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


def same_sign(one: Tensor, other: Tensor) -> float:
    """The share of components with the same sign."""
    return float((one.sign() == other.sign()).float().mean())


def trained(config: Config, data: Data, epochs: float) -> nn.Module:
    """The model of these settings after so many epochs of plain training."""
    model = build_model(
        config.model, num_classes=data.num_classes, input_shape=data.input_shape, seed=config.seed
    )
    loss = build_loss(config.loss)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=config.optim.lr, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    size, generator = config.train.batch_size, np.random.default_rng(config.seed)
    order = np.concatenate(
        [generator.permutation(data.train.num_examples) for _ in range(int(np.ceil(epochs)))]
    )
    for start in range(0, int(epochs * data.train.num_examples) - size + 1, size):
        inputs, targets = data.train.batch(order[start : start + size], 0)
        optimizer.zero_grad()
        loss(model(laid_out(inputs, layout_of(model))), targets).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model
