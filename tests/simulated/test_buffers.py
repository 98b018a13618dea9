"""Buffers of page-locked memory are used again only when their copy is done, however far behind it is."""

import pytest
import torch

import simulated
from sbpipe.machine.copies import Downloads, Uploads

DEVICE = "sim:1"
COUNT = 50


def batch(number: int) -> list[torch.Tensor]:
    """Tensors of several kinds, all of them told by a number."""
    return [
        torch.full((7,), number, dtype=torch.int64),
        torch.full((3, 5), float(number)),
        torch.full((2, 3, 4, 4), number, dtype=torch.uint8).to(memory_format=torch.channels_last),
    ]


@pytest.fixture(autouse=True)
def slow_copies() -> None:
    simulated.set_copies(latency_s=2e-3)


@pytest.mark.parametrize("how", ["together", "apart"])
def test_many_uploads_in_a_row_arrive_as_they_were_sent_and_wait_for_nothing(how: str) -> None:
    uploads = Uploads(torch.device(DEVICE))
    torch.accelerator.set_device_index(1)
    arrived = [getattr(uploads, how)(batch(number)) for number in range(COUNT)]
    torch.accelerator.set_device_index(0)
    assert simulated.waits() == []
    torch.accelerator.synchronize(DEVICE)
    for number, tensors in enumerate(arrived):
        for sent, there in zip(batch(number), tensors, strict=True):
            assert torch.equal(there.cpu(), sent)
            assert there.stride() == sent.stride()
    assert simulated.races() == []


def test_many_downloads_in_a_row_arrive_as_they_were_when_they_were_asked_for() -> None:
    downloads, state = Downloads(torch.device(DEVICE)), torch.zeros(9, device=DEVICE)
    asked = []
    for _ in range(COUNT):
        asked.append(downloads([state, state.long()]))
        state.add_(1)
    for number, arrival in enumerate(asked):
        single, whole = arrival.wait()
        assert single.tolist() == [number] * 9
        assert whole.tolist() == [number] * 9
    assert {wait.kind for wait in simulated.waits()} == {"event"}
    assert simulated.races() == []
