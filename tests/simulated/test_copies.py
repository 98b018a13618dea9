"""Copies between host and device, passes, weights: nobody waits, nothing is overwritten in flight."""

from typing import Any

import numpy as np
import pytest
import torch
from support.nets import candidates, net
from support.runs import small
from torch import nn

import simulated
from sbpipe.config import LossConfig
from sbpipe.data.own_batches import OwnBatches, OwnData
from sbpipe.machine.copies import Downloads, Uploads, overlaps
from sbpipe.machine.layout import placed
from sbpipe.models import parts_of
from sbpipe.models.losses import build_loss
from sbpipe.models.residuals import build_residual
from sbpipe.records import Manifest, Part
from sbpipe.runs.spans import Spans
from sbpipe.scoring import Scorer
from sbpipe.scoring.programs import FloatProgram
from sbpipe.trainer.setup import prepare
from sbpipe.weights.manifest import (
    build_manifest,
    copy,
    digest,
    lies_channels_last,
    relaid,
    row_by_row,
    tensors_in,
    tensors_of,
)
from sbpipe.weights.publisher import PartPublisher
from sbpipe.weights.replica import Replica
from sbpipe.weights.slots import Slots
from sbpipe.weights.stage import FlatCopy

SIM = torch.device("sim", 0)


def test_many_tensors_go_up_and_down_in_one_copy_each_while_the_device_is_behind() -> None:
    simulated.set_slowness(0, 50.0)
    uploads, downloads = Uploads(SIM), Downloads(SIM)
    work = torch.randn(300, 300, device=SIM)
    images = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    sent = [[torch.arange(5) + k, torch.rand(7, dtype=torch.float64), images + k] for k in range(20)]
    arrivals = []
    simulated.reset()
    for tensors in sent:
        far = uploads.together(tensors)
        work = work @ work
        arrivals.append(downloads([*far, torch.ones(3, dtype=torch.bool, device=SIM)]))
    assert simulated.waits() == []
    for tensors, arrival in zip(sent, arrivals, strict=True):
        *found, ones = arrival.wait()
        assert all(torch.equal(*pair) for pair in zip(tensors, found, strict=True))
        assert ones.all()
    assert simulated.races() == []


def test_where_pinned_memory_is_the_devices_own_copies_go_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty

    def shared(*size: Any, pin_memory: bool = False, **how: Any) -> torch.Tensor:
        return empty(*size, device=SIM if pin_memory else None, **how)

    assert overlaps.__wrapped__(SIM)
    monkeypatch.setattr(torch, "empty", shared)
    assert not overlaps.__wrapped__(SIM)


def test_a_step_seeds_a_device_that_has_one_generator_only(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = prepare(small(train__device="sim:0"))
    monkeypatch.delattr(torch.get_device_module(SIM), "manual_seed_all")
    states = []
    for _ in range(2):
        setup.train_step(3, 0.5, *setup.data.train.batch(np.arange(16), 0))
        states.append(torch.get_device_module(SIM).get_rng_state(SIM))
    assert torch.equal(*states)


def test_a_batch_of_any_make_goes_up_without_a_wait_and_its_parts_apart() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.arange(32))
    batches = OwnBatches(OwnData(data, torch.utils.data.default_collate), seed=0, device=SIM)
    simulated.reset()
    lot, _ = batches.batch(np.array([3, 1, 2]), 0)
    assert simulated.waits() == []
    inputs, targets = lot.tree
    assert inputs.untyped_storage().data_ptr() != targets.untyped_storage().data_ptr()
    assert targets.tolist() == [3, 1, 2]


def scorer_on(device: torch.device, precision: str, model: nn.Module | None = None) -> Scorer:
    config = LossConfig()
    return Scorer(
        model or net(),
        build_loss(config),
        precision=precision,
        device=device,
        residual=build_residual(config),
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_passes_that_are_queued_are_read_with_one_wait_and_are_those_of_the_cpu(precision: str) -> None:
    found = []
    for device in (torch.device("cpu"), SIM):
        scorer = scorer_on(device, precision)
        inputs, targets = (tensor.to(device) for tensor in candidates(64))
        scorer.prepare(inputs, targets)
        scorer.weights_arrived()
        parts = [(inputs[k : k + 16], targets[k : k + 16]) for k in range(0, 64, 16)]
        simulated.reset()
        queued = [scorer.queue(*part, lambda part=part: part) for part in parts]
        assert simulated.waits() == []
        found.append(list(scorer.read(queued)))
    assert sum(wait.count for wait in simulated.waits()) == 1
    for here, far in zip(*found, strict=True):
        for one, other in zip(here, far, strict=True):
            assert np.array_equal(one, other)
    assert simulated.races() == []


def test_a_pass_that_overflows_makes_the_queued_ones_behind_it_be_scored_again() -> None:
    scorer = scorer_on(SIM, "fp16")
    inputs, targets = (tensor.to(SIM) for tensor in candidates(48))
    scorer.prepare(inputs, targets)
    parts = [(inputs[k : k + 16] * (1e6 if k == 16 else 1.0), targets[k : k + 16]) for k in range(0, 48, 16)]
    scored = list(scorer.read([scorer.queue(*part, lambda part=part: part) for part in parts]))
    assert scorer.precision == "fp32"
    exact = scorer_on(SIM, "fp32")
    assert all(np.isfinite(each.scores).all() for each in scored)
    for each, part in zip(scored[1:], parts[1:], strict=True):
        assert np.array_equal(each.scores, exact.score(*part))


def test_weights_that_are_not_finite_are_found_with_the_scores() -> None:
    scorer = scorer_on(SIM, "fp32")
    inputs, targets = (tensor.to(SIM) for tensor in candidates(16))
    with torch.no_grad():
        next(iter(scorer.model.parameters())).fill_(float("nan"))
    scorer.weights_arrived()
    assert np.isnan(scorer.score(inputs, targets)).all()


def test_a_replica_is_loaded_in_one_upload_and_not_before_the_bytes_are_known_to_be_whole() -> None:
    source, model = net(), net().to(SIM)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(1.0)
    manifest = build_manifest(source, parts_of(source))
    flat = torch.zeros(manifest.num_bytes, dtype=torch.uint8)
    copy(tensors_in(flat, manifest), tensors_of(source, manifest))
    replica, before = Replica(model, manifest), digest(model)
    simulated.reset()
    replica.load(flat)
    flat.zero_()  # the slot is written again: what was taken stays
    assert (replica.version, digest(model)) == (-1, before)
    simulated.reset()
    replica.became(4)
    assert simulated.waits() == []
    assert (replica.version, digest(model)) == (4, digest(source))


def normed(num_layers: int, kernel: int) -> nn.Module:
    """As a trainer has it there: in channels-last. Normalisation counts its batches in whole numbers."""
    torch.manual_seed(0)
    layers = [layer for _ in range(num_layers) for layer in (nn.Conv2d(8, 8, kernel), nn.BatchNorm2d(8))]
    return placed(nn.Sequential(*layers), SIM)


def layout_there(model: nn.Module, dtype: str = "fp32") -> Manifest:
    return build_manifest(model, parts_of(model), dtype, is_channels_last=lies_channels_last(model))


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(("dtype", "kinds"), [("fp32", 2), ("fp16", 3)])
def test_a_snapshot_is_taken_in_one_kernel_for_each_kind_of_number_however_many_tensors_there_are(
    dtype: str, kinds: int, kernel: int
) -> None:
    for num_layers in (2, 12):
        model = normed(num_layers, kernel)
        manifest = layout_there(model, dtype)
        flat = FlatCopy(manifest, SIM)
        simulated.reset()
        taken = flat.taken(tensors_of(model, manifest))
        assert simulated.num_launches(0) == kinds
        for found, live in zip(tensors_in(taken, manifest), tensors_of(model, manifest), strict=True):
            assert torch.equal(found.cpu(), live.cpu().to(found.dtype))


@pytest.mark.parametrize(("dtype", "kinds"), [("fp32", 2), ("fp16", 3)])
def test_a_snapshot_is_applied_in_one_upload_and_as_few_kernels(dtype: str, kinds: int) -> None:
    source, model = normed(12, 3), normed(12, 3)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.copy_(parameter.half() + 1.0)
    manifest = layout_there(source, dtype)
    replica = Replica(model, manifest)
    replica.load(FlatCopy(manifest, SIM).taken(tensors_of(source, manifest)).cpu())
    simulated.reset()
    replica.became(1)
    assert simulated.num_launches(0) == 1 + kinds
    assert digest(model) == digest(source)


def test_whose_kernels_lie_row_by_row_takes_the_same_snapshot() -> None:
    source = normed(3, 3)
    manifest = layout_there(source)
    assert manifest.is_channels_last
    flat = FlatCopy(manifest, SIM).taken(tensors_of(source, manifest)).cpu()
    model = nn.Sequential(*(type(layer)(*_made_as(layer)) for layer in source))
    replica = Replica(model, manifest)
    replica.load(flat)
    assert digest(model) == digest(source)
    plain = row_by_row(manifest)
    assert not plain.is_channels_last
    # As a checkpoint has it, on whatever device it goes on.
    kept = relaid(flat, manifest, plain)
    found = dict(zip([spec.name for spec in plain.tensors], tensors_in(kept, plain), strict=True))
    assert all(torch.equal(found[name], tensor.cpu()) for name, tensor in source.state_dict().items())
    back = tensors_in(relaid(kept, plain, manifest), manifest)
    assert all(torch.equal(*pair) for pair in zip(back, tensors_in(flat, manifest), strict=True))


def _made_as(layer: nn.Module) -> tuple[int, ...]:
    return (8, 8, 3) if isinstance(layer, nn.Conv2d) else (8,)


def test_lists_that_do_not_lie_alike_cost_a_kernel_each() -> None:
    """A list is one kernel on the simulated devices only where a GPU has one."""
    ones = [torch.ones(3, 2, device=SIM), torch.ones(3, 2, device=SIM, dtype=torch.int64)]
    turned = [torch.ones(2, 3, device=SIM).T for _ in ones]
    for into, count in ((ones, 2), (turned, 2), (ones[:1] * 2, 1)):
        sources = [torch.zeros(3, 2, device=SIM) for _ in into]
        simulated.reset()
        torch._foreach_copy_(into, sources)
        assert simulated.num_launches(0) == count


def test_half_precision_is_derived_from_new_weights_in_as_many_kernels_for_two_layers_as_for_eight() -> None:
    counts = []
    for num_layers in (2, 8):
        torch.manual_seed(0)
        # A normalisation that nothing is folded into stays in single precision, its counter whole.
        layers = [
            layer for _ in range(num_layers) for layer in (nn.Linear(8, 8), nn.ReLU(), nn.BatchNorm1d(8))
        ]
        program = FloatProgram(nn.Sequential(*layers).to(SIM).eval().requires_grad_(False), "fp16")
        program.refresh()
        simulated.reset()
        program.refresh()
        counts.append(simulated.num_launches(0))
    assert counts[0] == counts[1], counts


class _Refuses(Slots):
    def commit(self, index: int, version: int) -> None:
        raise OSError("the slot is gone")


def test_what_fails_in_the_publish_thread_is_raised_in_the_loop() -> None:
    model = nn.Linear(4, 4).to(SIM)
    manifest = build_manifest(model, parts_of(model))
    slots = _Refuses.create(manifest.num_bytes)
    publisher = PartPublisher(
        model, manifest, slots, Spans(), lambda part, version, is_late: None, Part.WHOLE
    )
    with pytest.raises(OSError, match="the slot is gone"):
        publisher.publish(0, must=True)
    publisher.publish(1)
    publisher._stage._is_idle.wait(10.0)  # type: ignore[union-attr]
    with pytest.raises(OSError, match="the slot is gone"):
        publisher.check()
    publisher.close()


def test_one_thread_publishes_all_snapshots_and_ends_with_the_publisher() -> None:
    model = nn.Linear(4, 4).to(SIM)
    manifest = build_manifest(model, parts_of(model))
    publisher = PartPublisher(model, manifest, Slots.create(manifest.num_bytes), Spans(), lambda *told: None)
    thread = publisher._stage._thread  # type: ignore[union-attr]
    for version in range(3):
        publisher.publish(version, must=True)
        assert publisher._stage._thread is thread  # type: ignore[union-attr]
        assert thread.is_alive()
    publisher.close()
    assert not thread.is_alive()


def test_the_state_for_a_checkpoint_comes_in_one_copy_with_one_wait_as_it_is_and_as_it_lies() -> None:
    setup = prepare(small(train__device="sim:0", train__ema=0.9))
    step = setup.train_step
    step(0, 0.5, *setup.data.train.batch(np.arange(16), 0))
    simulated.reset()
    state = step.state()
    assert sum(wait.count for wait in simulated.waits()) == 1
    momenta = [entry["momentum_buffer"] for entry in step.optimizer.state_dict()["state"].values()]
    live = [*step.model.state_dict().values(), *momenta]
    kept = [
        *state["model"].values(),
        *(entry["momentum_buffer"] for entry in state["optimizer"]["state"].values()),
    ]
    for one, other in zip(live, kept, strict=True):
        assert other.device.type == "cpu"
        assert other.stride() == one.stride()
        assert torch.equal(other, one.cpu())
