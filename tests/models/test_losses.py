"""Losses: one float32 value per example, the same as torch's, and mistakes found at step 0."""

import math
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from sbpipe.config import LossConfig
from sbpipe.errors import ConfigError, ModelError
from sbpipe.models.losses import LOSSES, PerExampleLoss, build_loss, check_loss
from sbpipe.models.stand_in import is_cross_entropy


def logits(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_loss_gives_one_float32_value_per_example_from_classes(name: str, dtype: torch.dtype) -> None:
    losses = check_loss(build_loss(LossConfig(name=name)), logits(6, 4).to(dtype), torch.arange(6) % 4)
    assert losses.shape == (6,)
    assert losses.dtype == torch.float32


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_of_an_example_does_not_depend_on_its_batch(name: str) -> None:
    loss, outputs, targets = build_loss(LossConfig(name=name)), logits(6, 4), torch.arange(6) % 4
    alone = torch.cat([loss(outputs[[n]], targets[[n]]) for n in range(6)])
    assert torch.allclose(loss(outputs, targets), alone)


def test_a_confident_wrong_answer_costs_more_than_a_confident_right_one() -> None:
    outputs = torch.tensor([[9.0, -9.0], [-9.0, 9.0]])
    for name in LOSSES:
        right, wrong = build_loss(LossConfig(name=name))(outputs, torch.tensor([0, 0]))
        assert wrong > right


def test_cross_entropy_of_no_opinion_is_the_logarithm_of_the_number_of_classes() -> None:
    losses = build_loss(LossConfig())(torch.zeros(3, 10), torch.tensor([0, 4, 9], dtype=torch.int32))
    assert losses.tolist() == pytest.approx([math.log(10)] * 3)


def test_label_smoothing_makes_certainty_cost() -> None:
    outputs, targets = torch.tensor([[20.0, 0.0]]), torch.tensor([0])
    assert build_loss(LossConfig())(outputs, targets).item() < 1e-6
    assert build_loss(LossConfig(label_smoothing=0.1))(outputs, targets).item() == pytest.approx(
        0.05 * 20.0, rel=1e-4
    )


def test_cross_entropy_of_an_image_of_classes_is_the_mean_over_its_pixels() -> None:
    outputs, targets = logits(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64)
    losses = build_loss(LossConfig())(outputs, targets)
    assert losses[1].item() == pytest.approx(
        functional.cross_entropy(outputs[1:], targets[1:]).item(), rel=1e-5
    )


def test_mse_takes_dense_targets_and_means_over_all_but_the_batch() -> None:
    outputs = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    assert build_loss(LossConfig(name="mse"))(outputs, torch.zeros(2, 2)).tolist() == [5.0, 0.0]


def test_mse_compares_a_column_with_a_row_by_example_and_never_broadcasts() -> None:
    losses = build_loss(LossConfig(name="mse"))(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 4.0]))
    assert losses.tolist() == [0.0, 4.0]


def test_bce_means_over_the_labels_of_an_example() -> None:
    outputs, labels = logits(5, 3), torch.tensor([[1, 0, 1]] * 5)
    expected = functional.binary_cross_entropy_with_logits(outputs[0], labels[0].float())
    assert build_loss(LossConfig(name="bce"))(outputs, labels)[0].item() == pytest.approx(expected.item())


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            lambda o, t: functional.cross_entropy(o, t),
            r"got shape \[\], want shape \[6\].*reduction='none' is the usual fix",
        ),
        (lambda o, t: o.square(), r"got shape \[6, 4\], want shape \[6\]"),
        (lambda o, t: o.square().mean(1)[:5], r"got shape \[5\], want shape \[6\]"),
        (lambda o, t: 3.0, "returned a float. Return a tensor"),
        (lambda o, t: t, "returned torch.int64. Return floating-point numbers"),
        (lambda o, t: o.mean(1) / (t != 2), "loss: is -?inf at position 2 of the first batch"),
        (lambda o, t: o.mean(1).detach(), "does not require grad"),
        (
            lambda o, t: functional.cross_entropy(o, t + 1, reduction="none"),
            "IndexError: Target 4 is out of bounds",
        ),
        (
            lambda o, t: o @ o,
            r"cannot be computed from outputs \[6, 4\] torch.float32 and targets \[6\] torch.int64",
        ),
        (lambda o, t: o + "1", "TypeError"),
    ],
)
def test_an_unusable_loss_is_refused_at_step_0(
    loss: Callable[[Tensor, Tensor], Tensor], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        check_loss(loss, logits(6, 4), torch.arange(6) % 4)


def test_targets_that_fit_no_output_are_refused_with_both_shapes() -> None:
    with pytest.raises(ModelError, match=r"targets of shape \[6, 3\] do not fit outputs of shape \[6, 4\]"):
        check_loss(build_loss(LossConfig(name="mse")), logits(6, 4), torch.zeros(6, 3))


def test_outputs_and_targets_that_are_no_tensors_work_with_a_users_loss() -> None:
    outputs, targets = {"logits": logits(6, 4)}, types.SimpleNamespace(classes=torch.arange(6) % 4)
    losses = check_loss(
        lambda o, t: functional.cross_entropy(o["logits"], t.classes, reduction="none"), outputs, targets
    )
    assert losses.shape == (6,)


def test_a_users_loss_is_computed_in_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_float32_loss.py").write_text(
        "def absolute(outputs, targets):\n    return (outputs[:, 0] - targets).abs()\n"
    )
    monkeypatch.chdir(tmp_path)
    loss = build_loss(LossConfig(name="my_float32_loss:absolute"))
    losses = check_loss(
        loss, torch.ones(2, 1, dtype=torch.bfloat16, requires_grad=True), torch.tensor([0.999, 3.0])
    )
    assert losses.tolist() == pytest.approx([0.001, 2.0], rel=1e-3)


def entropy(outputs: Tensor, targets: Tensor, **options: Any) -> Tensor:
    return functional.cross_entropy(outputs, targets.long(), reduction="none", **options)


def by_hand(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.logsumexp(1) - outputs.gather(1, targets.long()[:, None])[:, 0]


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = entropy(outputs, targets)
    return (1.0 - torch.exp(-losses)) ** 2 * losses


@pytest.mark.parametrize(
    ("loss", "is_entropy"),
    [
        (entropy, True),
        (by_hand, True),
        (partial(entropy, label_smoothing=0.05), False),
        (partial(entropy, weight=torch.tensor([1.0, 1.0, 2.0, 1.0])), False),
        (focal, False),
        (lambda outputs, targets: 0.5 * entropy(outputs, targets), False),
        (lambda outputs, targets: 0.5 + entropy(outputs, targets), False),
        (lambda outputs, targets: entropy(outputs.sub_(1.0), targets), True),
        (build_loss(LossConfig(name="bce")), False),
        (build_loss(LossConfig(name="mse")), False),
    ],
)
def test_a_loss_is_known_for_cross_entropy_by_its_gradient_and_values(
    loss: PerExampleLoss, is_entropy: bool
) -> None:
    # A model may begin with zeros: of them a smoothed loss has the same values.
    for outputs in (torch.zeros(6, 4), 3.0 * logits(6, 4)):
        assert is_cross_entropy(loss, outputs, torch.arange(6, dtype=torch.int32) % 4) == is_entropy


def test_a_loss_that_takes_probabilities_is_asked_with_no_other_numbers() -> None:
    def of_probabilities(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.binary_cross_entropy(
            outputs, functional.one_hot(targets, 4).float(), reduction="none"
        ).mean(1)

    assert not is_cross_entropy(of_probabilities, logits(6, 4).softmax(1), torch.arange(6) % 4)


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (torch.zeros(6, 4), torch.full((6,), -100)),
        (torch.zeros(6, 4), torch.zeros(6, 4)),
        (torch.zeros(6, 4, 2), torch.zeros(6, 2, dtype=torch.int64)),
        (torch.zeros(6, 1), torch.zeros(6, dtype=torch.int64)),
        ({"logits": torch.zeros(6, 4)}, torch.zeros(6, dtype=torch.int64)),
    ],
    ids=["left out", "dense", "pixels", "one class", "a dict"],
)
def test_what_is_no_row_of_logits_per_class_label_is_no_cross_entropy_of_classes(
    outputs: Any, targets: Tensor
) -> None:
    assert not is_cross_entropy(entropy, outputs, targets)


def test_a_loss_that_does_not_exist_is_named() -> None:
    with pytest.raises(
        ModelError, match=r"loss.name = 'hinge': unknown loss. It is one of cross_entropy, mse, bce"
    ):
        build_loss(LossConfig(name="hinge"))
    with pytest.raises(
        ConfigError,
        match=r"loss.name = 'math:hinge': module 'math' .* has no 'hinge'. Its callables are: acos",
    ):
        build_loss(LossConfig(name="math:hinge"))
