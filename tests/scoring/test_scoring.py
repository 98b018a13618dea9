"""Scores come from the weights that arrived, at every precision, and scoring moves nothing."""

import logging
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from support.nets import FAMILIES, PRECISIONS, candidates, exact_losses, net, scorer_of, unsettled
from torch import Tensor, nn

from sbpipe.errors import DataError, DeviceError, ModelError
from sbpipe.models import parts_of
from sbpipe.records import Part
from sbpipe.scoring import Scorer
from sbpipe.scoring.agreement import SLICE, SPACING
from sbpipe.selection.fidelity import spearman
from sbpipe.weights.manifest import build_manifest, copy, tensors_in, tensors_of
from sbpipe.weights.replica import Replica


@pytest.mark.parametrize("name", FAMILIES)
def test_a_score_is_the_loss_in_evaluation_mode(name: str) -> None:
    model = unsettled(net(name))
    wanted = exact_losses(model, *candidates())
    assert np.allclose(scorer_of(model).score(*candidates()), wanted, rtol=1e-4, atol=1e-4)


def test_scoring_moves_neither_batch_norm_statistics_nor_the_global_generator() -> None:
    scorer = scorer_of(net())
    before = {name: buffer.clone() for name, buffer in scorer.model.named_buffers()}
    state = torch.get_rng_state()
    scorer.score(*candidates())
    assert all(torch.equal(buffer, before[name]) for name, buffer in scorer.model.named_buffers())
    assert torch.equal(torch.get_rng_state(), state)


TENSORS = [
    "features.0.weight",
    *(f"features.2.{name}" for name in ("running_mean", "running_var", "weight", "bias")),
    "head.weight",
]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", TENSORS)
def test_weights_that_arrive_are_the_weights_that_score(precision: str, name: str) -> None:
    scorer = scorer_of(net(), precision)
    before = scorer.score(*candidates())
    with torch.no_grad():
        scorer.model.state_dict()[name].view(-1)[0] += 3.0
    scorer.weights_arrived()
    moved = scorer.score(*candidates())
    wanted = exact_losses(scorer.model, *candidates())
    assert not np.allclose(moved, before, atol=1e-3)
    assert spearman(moved, wanted) > 0.97


def test_new_norms_alone_requantise_nothing() -> None:
    scorer = scorer_of(net(), "int8")
    scorer.score(*candidates())
    layer = next(module for name, module in scorer._program._run.named_modules() if name.startswith("int8"))  # type: ignore[attr-defined]
    packed = layer._packed.packed
    for name, moves in (("features.2.weight", False), ("features.0.weight", True)):
        with torch.no_grad():
            scorer.model.state_dict()[name].mul_(1.01)
        scorer.weights_arrived()
        scorer.refresh()
        assert (layer._packed.packed is not packed) is moves


@pytest.mark.parametrize("precision", PRECISIONS)
def test_snapshots_reach_the_scores_through_the_replica(precision: str) -> None:
    """The layer that gives the output is not the last registered one, which comes with the fast parts."""

    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 10)
            self.one, self.norm, self.two = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3)

        def forward(self, images: Tensor) -> Tensor:
            out: Tensor = self.head(self.two(torch.relu(self.norm(self.one(images)))).mean(dim=(2, 3)))
            return out

    model, source = HeadFirst(), HeadFirst()
    scorer = scorer_of(model, precision)
    scorer.score(*candidates())
    manifest = build_manifest(source, parts_of(source))
    replica = Replica(scorer.model, manifest, scorer.weights_arrived)
    for part in (Part.WHOLE, Part.FAST):
        with torch.no_grad():
            for tensor in source.parameters():
                tensor.add_(
                    0.2 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(tensor.numel()))
                )
        flat = torch.zeros(manifest.num_bytes, dtype=torch.uint8)
        copy(tensors_in(flat, manifest), tensors_of(source, manifest))
        replica.load(flat, part)
        assert spearman(scorer.score(*candidates()), exact_losses(scorer.model, *candidates())) > 0.97
    assert torch.equal(scorer.model.two.weight, source.two.weight)  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize("precision", PRECISIONS[1:])
@pytest.mark.parametrize("name", ["small_cnn", "small_resnet"])
def test_a_narrow_precision_ranks_like_fp32(name: str, precision: str) -> None:
    model = unsettled(net(name))
    wide, narrow = (scorer_of(model, kind).score(*candidates(128)) for kind in ("fp32", precision))
    assert narrow.dtype == np.float32
    assert spearman(narrow, wide) > 0.98


def test_int8_computes_in_integers() -> None:
    graph = scorer_of(net("small_resnet"), "int8")._program._run  # type: ignore[attr-defined]
    with torch.profiler.profile(acc_events=True) as profile:
        graph(candidates()[0])
    called = {event.name for event in profile.events() or []}
    assert "onednn::qconv2d_pointwise" in called
    assert not {"aten::conv2d", "mkldnn::_convolution_pointwise"} & called


def test_int8_learns_new_ranges_after_new_weights() -> None:
    scorer = scorer_of(net(), "int8")
    scorer.score(*candidates())
    with torch.no_grad():
        for module in scorer.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.weight is not None
                module.weight.mul_(3.0)
    scorer.weights_arrived()
    scores = scorer.score(*candidates())
    assert scorer.agreement.num_checks == 1
    wanted = exact_losses(scorer.model, *candidates())
    assert np.abs(scores - wanted).max() < 0.02 * wanted.max(), (
        "ranges of the old weights would cut most values off"
    )


def test_values_that_are_not_finite_teach_no_range() -> None:
    scorer = scorer_of(net(), "int8")
    scorer.prepare(*candidates())
    before = scorer.score(*candidates())
    inputs, targets = candidates()
    inputs[0] = float("nan")
    scorer.weights_arrived()
    scorer.score(inputs, targets)
    assert (scorer.agreement.num_checks, scorer.agreement.num_failed) == (0, 1)
    assert np.array_equal(scorer.score(*candidates()), before)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_went_in_as_no_number_comes_out_as_none(precision: str, value: float) -> None:
    scorer = scorer_of(net(), precision)
    scorer.prepare(*candidates())
    inputs, targets = candidates()
    inputs[3, 0, 5, 5] = value
    scores = scorer.score(inputs, targets)
    assert np.flatnonzero(~np.isfinite(scores)).tolist() == [3]
    assert scorer.num_overflowed == 1


@pytest.mark.parametrize("precision", PRECISIONS)
def test_weights_that_are_no_numbers_give_no_scores_until_better_ones_arrive(precision: str) -> None:
    scorer = scorer_of(net(), precision)
    before = scorer.score(*candidates())
    weight = scorer.model.state_dict()["features.0.weight"]
    kept = weight.clone()
    for new, is_finite in ((torch.full_like(weight, float("nan")), False), (kept, True)):
        with torch.no_grad():
            weight.copy_(new)
        scorer.weights_arrived()
        assert np.isfinite(scorer.score(*candidates())).all() == is_finite
    assert np.allclose(scorer.score(*candidates()), before, atol=0.3)


def test_candidates_that_are_not_finite_are_an_error_at_the_start_of_int8_only() -> None:
    inputs, targets = candidates()
    inputs[3, 0, 0, 0] = float("nan")
    with pytest.raises(DataError, match="1 of the first 32 candidates hold values that are not finite"):
        scorer_of(net(), "int8").prepare(inputs, targets)
    scorer_of(net()).prepare(inputs, targets)


def test_weights_that_give_no_finite_values_are_an_error_at_the_start_of_int8() -> None:
    model = net()
    with torch.no_grad():
        model.state_dict()["features.0.weight"].view(-1)[0] = float("inf")
    with pytest.raises(ModelError, match="range cannot be measured"):
        scorer_of(model, "int8").prepare(*candidates())


def overflowing() -> nn.Module:
    """A net whose outputs are finite in fp32 and not in fp16."""
    model = net()
    with torch.no_grad():
        model.state_dict()["head.weight"].fill_(60_000.0)
        model.state_dict()["head.weight"][::2] *= -1.0
    return model


def test_overflow_in_half_precision_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    scorer, (inputs, targets) = scorer_of(overflowing(), "fp16"), candidates()
    inputs[0] = 0.0  # such an image overflows nothing, so that half precision still says something
    assert np.flatnonzero(np.isfinite(scorer.score(inputs, targets))).tolist() == [0]
    scorer.score(inputs, targets)
    assert scorer.num_overflowed == 2 * (len(inputs) - 1)
    assert caplog.text.count("31 of 32 scores in fp16 are not finite") == 1


def test_a_precision_that_holds_no_score_at_all_is_left_for_fp32(caplog: pytest.LogCaptureFixture) -> None:
    scorer = scorer_of(overflowing(), "fp16")
    assert np.isfinite(scorer.score(*candidates())).all()
    assert scorer.precision == "fp32"
    assert "no score in fp16 is finite: scoring in fp32 from now on" in caplog.text


class Branching(nn.Module):
    """Its forward pass depends on its input's values, so that it cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.inner(images if images.mean() < 100.0 else -images)
        return out


class Deceptive(nn.Module):
    """It computes something else for what stands in for a tensor while it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.inner(images) * (1.0 if isinstance(images, Tensor) else -1.0)
        return out


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_that_cannot_be_traced_is_scored_as_it_is(precision: str) -> None:
    scorer = scorer_of(Branching(), precision)
    scorer.prepare(*candidates())
    assert np.allclose(scorer.score(*candidates()), exact_losses(scorer.model, *candidates()), atol=0.1)
    with torch.no_grad():
        scorer.model.state_dict()["inner.head.bias"][0] += 5.0
    scorer.weights_arrived()
    assert np.allclose(scorer.score(*candidates()), exact_losses(scorer.model, *candidates()), atol=0.2)


@pytest.mark.parametrize("model", [Branching(), nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))])
def test_a_model_that_cannot_be_quantised_is_scored_in_fp32_and_says_so(
    model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    scorer = scorer_of(model, "int8")
    assert scorer.precision == "fp32"
    assert "cannot be quantised" in caplog.text
    assert np.allclose(scorer.score(*candidates()), exact_losses(scorer.model, *candidates()), atol=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_model_that_was_traced_wrongly_is_scored_as_it_is(
    precision: str, caplog: pytest.LogCaptureFixture
) -> None:
    scorer = scorer_of(Deceptive(), precision)
    scorer.prepare(*candidates())
    assert "computes something else" in caplog.text
    assert scorer.precision == ("fp32" if precision == "int8" else precision)
    assert np.allclose(scorer.score(*candidates()), exact_losses(scorer.model, *candidates()), atol=0.1)


class Odd(nn.Module):
    """Things that real models do and simple ones do not."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.place = nn.Parameter(
            0.3 * torch.randn(1, 16, 32, 32, generator=torch.Generator().manual_seed(3))
        )
        self.one, self.two, self.three = (nn.Conv2d(before, 16, 3, padding=1) for before in (3, 16, 16))
        self.norm = nn.BatchNorm2d(16)
        self.rectify = nn.ReLU6() if kind == "relu6" else nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(1, 1)
        self.head = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        values = self.norm(self.one(images))
        if self.kind == "relu6":
            values = self.rectify(20.0 * values)
            values = self.rectify(self.norm(self.two(6.0 * values)))
        elif self.kind == "parameter":
            values = self.two(torch.relu(values)) + self.place
        elif self.kind == "in place":
            self.rectify(values)
            values = self.two(values)
        elif self.kind == "aliased":
            values = torch.relu(values)
            values = torch.relu(self.three(values) + self.pool(values)) + self.two(values)
        elif self.kind == "twice":
            values = self.two(torch.relu(self.two(torch.relu(values)))) + values
        elif self.kind == "broadcast":
            values = torch.relu(self.two(values.mean(dim=(2, 3), keepdim=True)) + values)
        out: Tensor = self.head(self.three(torch.relu(values)).mean(dim=(2, 3)))
        return out


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["relu6", "parameter", "in place", "aliased", "twice", "broadcast"])
def test_odd_models_are_scored_like_simple_ones(kind: str, precision: str) -> None:
    torch.manual_seed(0)
    scorer = scorer_of(Odd(kind), precision)
    scorer.prepare(*candidates(64))
    scores, wanted = scorer.score(*candidates(64)), exact_losses(scorer.model, *candidates(64))
    assert np.abs(scores - wanted).max() < (1e-4 if scorer.precision == "fp32" else 0.1) * max(
        1.0, np.abs(wanted).max()
    )
    assert spearman(scores, wanted) > 0.97


def test_a_relu6_saturates_in_int8_where_it_does_in_fp32() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
    with torch.no_grad():
        model[0].weight.mul_(20.0)  # type: ignore[operator]
    scorer = scorer_of(model, "int8")
    # Without VNNI activations have seven bits: rounding costs twice as much. Without the cap it would be 0.6.
    assert np.allclose(scorer.score(*candidates()), exact_losses(scorer.model, *candidates()), atol=0.05)


def test_fp16_keeps_the_statistics_of_norms_that_nothing_is_folded_into() -> None:
    model = nn.Sequential(
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 8, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    model[0].running_var.fill_(1e5)  # type: ignore[union-attr, operator]
    scorer = scorer_of(model, "fp16")
    inputs, targets = candidates()
    assert np.allclose(
        scorer.score(300 * inputs, targets), exact_losses(scorer.model, 300 * inputs, targets), atol=0.02
    )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_model_whose_weights_are_computed_is_scored(precision: str) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
    nn.utils.weight_norm(model[0])
    scorer = scorer_of(model, precision)
    for _ in range(2):
        scorer.weights_arrived()
        scores = scorer.score(*candidates())
        assert spearman(scores, exact_losses(scorer.model, *candidates())) > 0.97
        with torch.no_grad():
            scorer.model.state_dict()["0.weight_g"].mul_(5.0)


def test_layers_that_cannot_be_quantised_stay_wide_and_are_named(caplog: pytest.LogCaptureFixture) -> None:
    odd = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), odd, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
    scorer = scorer_of(model, "int8")
    scorer.prepare(*candidates())
    assert scorer.precision == "int8"
    assert "1 computes in fp32" in caplog.text
    assert spearman(scorer.score(*candidates()), exact_losses(scorer.model, *candidates())) > 0.98


def test_large_linear_layers_compute_in_int8() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10)
    )
    scorer = scorer_of(model, "int8")
    assert scorer.precision == "int8"
    assert spearman(scorer.score(*candidates(128)), exact_losses(scorer.model, *candidates(128))) > 0.98
    with torch.no_grad():
        scorer.model.state_dict()["1.weight"] += 0.01
        scorer.model.state_dict()["3.bias"] -= 0.5
    scorer.weights_arrived()
    assert spearman(scorer.score(*candidates(128)), exact_losses(scorer.model, *candidates(128))) > 0.98


def test_a_smaller_image_reaches_the_scorer() -> None:
    sizes: list[tuple[int, ...]] = []
    model = net()
    model.get_submodule("features.17").register_forward_pre_hook(
        lambda _, args: sizes.append(tuple(args[0].shape[2:]))
    )
    scorer = scorer_of(model, scale=0.5)
    scorer.prepare(*candidates())
    assert set(sizes) == {(2, 2)}, "of the last layer: half of what it sees of a whole image"
    inputs, targets = candidates()
    half = nn.functional.avg_pool2d(inputs, 2)
    assert np.allclose(scorer.score(inputs, targets), exact_losses(scorer.model, half, targets), atol=1e-4)


def test_the_check_of_a_smaller_image_tells_size_and_precision_apart() -> None:
    scorer = scorer_of(net(), "bf16", scale=0.5)
    scorer.weights_arrived()
    inputs, targets = candidates()
    scores, half = (
        scorer.score(inputs, targets),
        exact_losses(scorer.model, nn.functional.avg_pool2d(inputs, 2), targets),
    )
    assert scorer.agreement.mean == pytest.approx(spearman(scores, half))
    assert scorer.scale_agreement.mean == pytest.approx(
        spearman(half, exact_losses(scorer.model, inputs, targets))
    )
    assert scorer.scale_agreement.mean < scorer.agreement.mean


def test_a_model_that_does_not_take_the_smaller_image_is_an_error_at_the_start() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    with pytest.raises(ModelError, match=r"selector.scale = 0.5: the model does not take images of 16x16"):
        scorer_of(model, scale=0.5).prepare(*candidates())
    vectors = torch.zeros(4, 7), torch.zeros(4, dtype=torch.long)
    with pytest.raises(ModelError, match="only images can be scored smaller"):
        scorer_of(nn.Linear(7, 10), scale=0.5).prepare(*vectors)


@pytest.fixture
def fake_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Capture and guards are torch's own; only code generation, which needs a C++ compiler, is left out."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda run, **options: real(run, backend="eager", **options))
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("fake_compiler")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_compiled_scorer_takes_new_weights_and_other_batch_sizes_without_compiling_anew(
    precision: str,
) -> None:
    scorer = scorer_of(net(), precision, compiled=True)
    scorer.prepare(*candidates())
    torch.compiler.set_stance("fail_on_recompile")
    try:
        for count in (32, 7, 32):
            with torch.no_grad():
                scorer.model.state_dict()["features.0.weight"].view(-1)[0] += 3.0
                scorer.model.state_dict()["features.2.running_mean"] += 0.5
                scorer.model.state_dict()["features.2.weight"][0] -= (
                    0.8  # through zero: its sign behind the max pool turns
                )
            scorer.weights_arrived()
            inputs, targets = candidates(count)
            assert np.allclose(
                scorer.score(inputs, targets),
                exact_losses(scorer.model, inputs, targets),
                rtol=0.05,
                atol=0.3,
            )
    finally:
        torch.compiler.set_stance("default")


def test_a_model_that_cannot_be_compiled_is_an_error_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: nn.Module, **options: object) -> nn.Module:
        def call(inputs: Tensor) -> Tensor:
            raise OSError("c++: command not found")

        return call  # type: ignore[return-value]

    monkeypatch.setattr(torch, "compile", fail)
    with pytest.raises(
        DeviceError, match=r"selector.compile = true: .*c\+\+: command not found.*A C\+\+ compiler"
    ):
        scorer_of(net(), compiled=True).prepare(*candidates())


def test_fp32_at_full_size_is_never_checked() -> None:
    scorer = scorer_of(net())
    scorer.weights_arrived()
    scorer.score(*candidates())
    assert scorer.agreement.num_checks == 0


def test_checks_follow_new_weights_and_keep_their_distance() -> None:
    scorer = scorer_of(net(), "bf16")
    per_pass = 8 * SLICE
    checks = []
    for _ in range(SPACING // per_pass + 2):
        scorer.weights_arrived()
        scorer.score(*candidates(per_pass, side=8))
        checks.append(scorer.agreement.num_checks)
    assert checks == [1] * (SPACING // per_pass) + [2, 2]


def test_passes_that_are_given_back_leave_the_next_check_where_it_was() -> None:
    one, other = (scorer_of(unsettled(net("small_resnet")), "bf16") for _ in range(2))
    for scorer in (one, other):
        scorer.weights_arrived()
    queued = [one.queue(*candidates(), again=lambda: candidates()) for _ in range(3)]
    next(iter(one.read(queued)))
    one.give_back(queued[1])
    other.examine(*candidates())
    assert one.agreement.mark() == other.agreement.mark()
    assert one.statistics.mark() == other.statistics.mark()


def drift(scorer: Scorer, checks: int) -> None:
    """Scores of so many checks that have lost their order."""
    rising = np.arange(32, dtype=np.float32)
    for _ in range(checks):
        scorer._note_ranks(rising[::-1].copy(), rising)


def test_low_agreement_is_said_once_or_steps_back_up(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scorer = scorer_of(net(), "bf16", min_agreement=0.95)
    drift(scorer, 12)
    assert (
        caplog.text.count("scores in bf16 rank like fp32 only to -1.000: choose another selector.precision")
        == 1
    )
    scorer.slower = ["fp32", "fp16"]
    drift(scorer, 1)
    assert scorer.precision == "fp16"
    assert scorer.slower == ["fp32"]
    drift(scorer, 3)
    assert scorer.precision == "fp16", "four checks of its own decide"
    drift(scorer, 1)
    assert scorer.precision == "fp32"
    assert np.allclose(scorer.score(*candidates()), exact_losses(scorer.model, *candidates()), atol=1e-5)


def test_scores_that_overflow_step_back_up() -> None:
    model = net()
    with torch.no_grad():
        model.state_dict()["head.weight"].fill_(60_000.0)
    scorer = scorer_of(model, "fp16", min_agreement=0.95)
    scorer.slower = ["fp32"]
    for _ in range(4):
        scorer.agreement._since = SPACING
        scorer.weights_arrived()
        scorer.score(*candidates())
    assert scorer.precision == "fp32"


def test_spearman_agrees_with_the_textbook_formula_and_ignores_what_is_not_finite() -> None:
    a, b = np.array([1, 2, 3, 4, 5], np.float32), np.array([5, 6, 7, 8, 7], np.float32)
    assert spearman(a, b) == pytest.approx(0.8207826816681233)
    assert spearman(
        np.append(a, np.nan).astype(np.float32), np.append(b, 1).astype(np.float32)
    ) == pytest.approx(0.8207826816681233)
    assert np.isnan(spearman(a, np.ones(5, np.float32)))
