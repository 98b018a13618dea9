"""The simulated accelerators order, wait and fail as real ones do, and compute what the CPU computes."""

import copy
import threading
import time

import pytest
import torch
from torch import nn

import simulated


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 10)
    )


def trained(model: nn.Module, device: str, steps: int = 4, amp: torch.dtype | None = None) -> nn.Module:
    model = copy.deepcopy(model).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("sim", enabled=amp is torch.float16)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        inputs = torch.randn(16, 3, 8, 8, generator=generator).to(device)
        targets = torch.randint(10, (16,), generator=generator).to(device)
        with torch.autocast("sim", amp, enabled=amp is not None):
            outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs.float(), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model


@pytest.mark.parametrize("device", ["sim:0", "sim:1"])
def test_training_gives_the_bits_of_the_cpu(device: str) -> None:
    here, there = trained(net(), "cpu").state_dict(), trained(net(), device).state_dict()
    assert all(torch.equal(tensor, there[name].cpu()) for name, tensor in here.items())
    assert simulated.races() == []


@pytest.mark.parametrize("amp", [torch.bfloat16, torch.float16])
def test_mixed_precision_casts_and_trains(amp: torch.dtype) -> None:
    with torch.autocast("sim", amp):
        assert (torch.ones(2, 2, device="sim:0") @ torch.ones(2, 2, device="sim:0")).dtype is amp
        assert torch.ones(2, device="sim:0", dtype=amp).softmax(0).dtype is torch.float32
    state = trained(net(), "sim:0", amp=amp).state_dict()
    assert all(tensor.cpu().isfinite().all() for tensor in state.values())


def test_random_numbers_come_from_the_generator_of_the_device() -> None:
    before = torch.get_rng_state()
    torch.sim.manual_seed_all(5)
    first = torch.rand(4, device="sim:1")
    nn.functional.dropout(torch.ones(100, device="sim:1"))
    assert torch.equal(before, torch.get_rng_state())
    torch.sim.manual_seed_all(5)
    with torch.random.fork_rng([torch.device("sim:1")], device_type="sim"):
        assert torch.equal(torch.rand(4, device="sim:1").cpu(), first.cpu())
    assert torch.equal(torch.rand(4, device="sim:1").cpu(), first.cpu())


def test_kernels_of_one_kind_take_the_same_time_once_their_costs_are_kept() -> None:
    simulated.keep_costs(0)
    small, large = torch.ones(8, 8, device="sim:0"), torch.ones(400, 400, device="sim:0")

    def cost_s(values: torch.Tensor) -> float:
        before = simulated.busy_s(0)
        values.mm(values)
        return simulated.busy_s(0) - before

    first = [cost_s(large) for _ in range(4)]
    assert {round(1e9 * cost_s(large)) for _ in range(8)} == {round(1e9 * min(first))}
    cost_s(small)
    assert cost_s(small) < min(first), "of another kind"
    simulated.set_slowness(0, 3.0)
    assert cost_s(large) == pytest.approx(3.0 * min(first), rel=1e-3)


def test_views_share_memory_and_results_do_not() -> None:
    base = torch.zeros(2, 3, device="sim:0")
    base[0].add_(1)
    base.t()[1, 1] = 5
    assert base.tolist() == [[1, 1, 1], [0, 5, 0]]
    grown = torch.empty(0, device="sim:0")
    torch.add(base, base, out=grown)
    assert grown.tolist() == [[2, 2, 2], [0, 10, 0]]


def test_what_a_kernel_makes_is_freed_with_its_tensor() -> None:
    before = torch.accelerator.memory_allocated(0)
    tensor = torch.zeros(1 << 20, device="sim:0").add(1).mul(2)
    assert torch.accelerator.memory_allocated(0) - before >= 4 << 20
    del tensor
    assert torch.accelerator.memory_allocated(0) == before


def test_a_full_device_says_so() -> None:
    simulated.set_memory(0, torch.accelerator.memory_allocated(0) + (1 << 20))
    with pytest.raises(torch.OutOfMemoryError, match="sim:0 out of memory"):
        torch.zeros(1 << 20, device="sim:0")


def test_a_kernel_takes_the_time_of_its_device_and_a_wait_lasts_until_then() -> None:
    simulated.set_kernel_s(0, 0.01)
    simulated.set_slowness(0, 3)
    tensor = torch.zeros(4, device="sim:0")
    simulated.reset()
    first, last = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
    first.record(torch.accelerator.current_stream(0))
    tensor.add_(1).mul_(2)
    last.record(torch.accelerator.current_stream(0))
    last.synchronize()
    assert time.monotonic() >= simulated.device_clock_s(0)
    assert first.elapsed_time(last) >= 60
    assert simulated.busy_s(0) == pytest.approx(0.06)
    assert simulated.elapsed_s(0) >= simulated.busy_s(0)


def test_an_event_has_not_come_while_its_device_computes() -> None:
    simulated.set_kernel_s(0, 3600)
    torch.zeros(4, device="sim:0")
    done = torch.accelerator.current_stream(0).record_event()
    assert not done.query()
    simulated.reset()  # nobody waits an hour
    assert torch.accelerator.current_stream(0).query()


def test_two_devices_have_clocks_of_their_own() -> None:
    for index, seconds in enumerate((0.01, 0.001)):
        simulated.set_kernel_s(index, seconds)
        tensor = torch.empty(4, device=f"sim:{index}")
        for _ in range(3):
            tensor.zero_()
    assert (simulated.busy_s(0), simulated.busy_s(1)) == pytest.approx((0.03, 0.003))


def test_waiting_for_what_came_before_does_not_drain_the_device() -> None:
    tensor = torch.zeros(4, device="sim:0")
    before = torch.accelerator.current_stream(0).record_event()
    tensor.add_(1)
    simulated.reset()
    before.synchronize()
    torch.accelerator.current_stream(0).record_event().synchronize()
    (found,) = {(wait.kind, wait.count, wait.drains) for wait in simulated.waits()} - {("event", 1, 0)}
    assert found == ("event", 1, 1)


def test_a_backward_pass_runs_on_the_stream_of_its_forward_pass() -> None:
    side = torch.Stream("sim:0")
    weight = torch.ones(8, device="sim:0", requires_grad=True)
    side.wait_event(torch.accelerator.current_stream(0).record_event())
    with side:
        (weight * 2).sum().backward()
    torch.accelerator.current_stream(0).wait_event(side.record_event())
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0] * 8
    assert simulated.races() == []


def test_threads_begin_on_the_first_device_and_each_has_its_own() -> None:
    seen: list[int] = []

    def look() -> None:
        seen.append(torch.accelerator.current_device_index())
        torch.accelerator.set_device_index(1)

    for _ in range(2):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == [0, 0]
    assert torch.accelerator.current_device_index() == 0
