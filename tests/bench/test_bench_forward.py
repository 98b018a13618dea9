"""The bench of reusing the scoring pass: its rows, and that the backward pass of kept rows is what it says.
No time is asserted.
"""

import pytest
import torch
from torch import Tensor

from sbpipe.bench import forward
from sbpipe.bench.forward import WAYS, Subject, measure, rows_of
from sbpipe.bench.kept_rows import KeptRows


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "MODELS", {"small_cnn": {"width": 4}})
    monkeypatch.setattr(forward, "BATCH_SIZE", 4)
    monkeypatch.setattr(forward, "PASS", 4)
    monkeypatch.setattr(forward, "ROUNDS", 1)
    monkeypatch.setattr(forward, "SHAPE", (3, 8, 8))


@pytest.mark.usefixtures("tiny")
def test_every_way_has_its_milliseconds_and_its_ratio_and_activations_their_size() -> None:
    found = {row.what.partition(": ")[2]: row for row in measure()}
    assert set(WAYS) <= set(found)
    assert all(found[way].unit == "ms" and found[way].value > 0 for way in WAYS)
    assert found["int8 scoring, then training, to as it is"].unit == "x"
    sizes = [found[f"activations kept for {whose}"].value for whose in ("a train batch", "its candidates")]
    assert 2.5 * sizes[0] < sizes[1] < 3.1 * sizes[0]


def test_a_way_is_the_sum_of_its_parts() -> None:
    parts = {part: 1.0 for way in WAYS.values() for part in way} | {"score fp32": 4.0}
    slow = {part: 10.0 * took for part, took in parts.items()}
    found = {row.what: row.value for row in rows_of("net", [parts, slow, parts])}
    assert found["net: fp32 scoring, then training"] == 6.0
    assert found["net: int8 scoring, then training"] == 3.0
    assert found["net: int8 scoring, then training, to as it is"] == 0.5


def gradients(model: torch.nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    return found


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("name", "options"), [("small_cnn", {"width": 4}), ("small_resnet", {"depth": 8, "width": 4})]
)
def test_the_backward_pass_of_kept_rows_is_that_of_training_on_them_where_norms_are_fixed(
    name: str, options: dict[str, int]
) -> None:
    subject = Subject(name, options)
    subject.model.eval()
    reuse = KeptRows(subject.losses, subject.inputs[:4], subject.targets[:4])
    torch.autograd.backward(subject.losses(*subject.kept).mean())
    wanted = gradients(subject.model)
    for _ in range(2):
        losses = reuse.forward(subject.inputs, subject.targets)
        reuse.backward(subject.rows)
        for found, expected in zip(gradients(subject.model), wanted, strict=True):
            assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert torch.allclose(losses[subject.rows], subject.losses(*subject.kept), rtol=1e-4)


@pytest.mark.usefixtures("tiny")
def test_norms_of_the_batch_reach_from_the_kept_to_the_others() -> None:
    subject = Subject("small_cnn", {"width": 4})
    inputs = subject.inputs.clone().requires_grad_()
    for is_training in (True, False):
        subject.model.train(is_training)
        (gradient,) = torch.autograd.grad(
            subject.losses(inputs, subject.targets)[subject.rows].mean(), inputs
        )
        others = torch.ones(len(inputs), dtype=torch.bool).index_fill(0, subject.rows, False)
        assert bool(gradient[others].any()) is is_training
