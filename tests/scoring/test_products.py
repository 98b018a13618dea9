"""Linear layers in integers as accelerators have them; torch's product is there on the CPU too."""

import pytest
import torch
from torch import Tensor, nn

from sbpipe.scoring import dynamic, products
from sbpipe.scoring.dynamic import DynamicProgram
from sbpipe.scoring.products import ProductLinear
from sbpipe.selection.fidelity import spearman

ACCELERATOR = torch.device("xpu:0")


def is_exact_here() -> bool:
    """Whether the CPU's own product is; without VNNI it adds pairs of products in 16 bits."""
    most = torch.full((32, 32), 127, dtype=torch.int8)
    return bool((torch._int_mm(most, most.t()) == 127 * 127 * 32).all())


exact_product = pytest.mark.skipif(
    not is_exact_here(), reason="this CPU, which stands for an accelerator here, rounds its integer product"
)


def layer(inputs: int = 128, outputs: int = 64, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=bias)


def near(one: Tensor, other: Tensor) -> bool:
    return bool((one.float() - other.float()).norm() < 0.02 * other.float().norm())


@exact_product
@torch.no_grad()
@pytest.mark.parametrize("shape", [(1, 128), (5, 7, 128), (64, 128)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_of_bytes_is_near_the_product(shape: tuple[int, ...], bias: bool) -> None:
    linear = layer(bias=bias)
    quantised = ProductLinear(linear)
    quantised.refresh()
    values = torch.randn(shape)
    assert quantised(values).shape == (*shape[:-1], 64)
    assert near(quantised(values), linear(values))
    assert not torch.equal(quantised(values), linear(values))


@torch.no_grad()
def test_each_row_has_its_own_step() -> None:
    quantised = ProductLinear(linear := layer())
    quantised.refresh()
    values = torch.randn(2, 128) * torch.tensor([[1e-3], [1e3]])
    assert near(quantised(values)[0], linear(values)[0])


@exact_product
@torch.no_grad()
def test_half_precision_comes_out_as_it_went_in() -> None:
    quantised = ProductLinear(linear := layer())
    quantised.refresh()
    values = torch.randn(20, 128)
    done = quantised(values.half())
    assert done.dtype == torch.float16
    assert near(done, linear(values))


@exact_product
@torch.no_grad()
def test_new_weights_count_after_a_refresh_and_what_is_not_finite_stays_so() -> None:
    quantised = ProductLinear(linear := layer())
    quantised.refresh()
    values = torch.randn(20, 128)
    linear.weight.mul_(-2.0)
    quantised.refresh()
    assert near(quantised(values), linear(values))
    values[3, 5] = torch.inf
    assert torch.isfinite(quantised(values)).all(dim=1).tolist() == [k != 3 for k in range(20)]


class Mlp(nn.Module):
    def __init__(self, *, convolves: bool = False, sides: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 256 if convolves else 2, 9, padding=4)
        self.body = nn.Sequential(nn.Linear(2 * 64, sides * 2), nn.ReLU(), nn.Linear(sides * 2, sides))
        self.head = nn.Linear(sides, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(self.stem(images)[:, :2].flatten(1)))  # type: ignore[no-any-return]


def test_a_model_of_convolutions_is_refused_with_the_reason_and_one_of_linear_layers_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(products, "why_not", lambda device: None)
    assert dynamic._why_not(Mlp(), ACCELERATOR) is None
    assert "no integer convolutions for xpu, and they hold most of its weights" in str(
        dynamic._why_not(Mlp(convolves=True), ACCELERATOR)
    )
    odd = nn.Sequential(nn.Linear(99, 99), nn.Linear(99, 10))
    assert "multiples of 8" in str(dynamic._why_not(odd, ACCELERATOR))


def test_a_device_without_the_product_is_refused_with_what_it_said() -> None:
    assert products.why_not(torch.device("cpu")) is None
    reason = products.why_not(torch.device("meta"))
    assert reason is not None
    assert reason.startswith("PyTorch has no integer product for meta (torch._int_mm: ")


@exact_product
@torch.no_grad()
def test_a_program_of_products_ranks_like_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic, "_layer_of", lambda linear, device: ProductLinear(linear))
    monkeypatch.setattr(dynamic, "is_available", lambda: True)
    model, images = Mlp(), torch.randn(128, 3, 8, 8)
    program = DynamicProgram(model)
    assert program.refresh()
    wanted = program.calibrate(images)
    assert wanted is not None
    assert spearman(program(images)[:, 0].numpy(), wanted[:, 0].numpy()) > 0.99
    assert not torch.equal(program(images), wanted)
