"""The communication between ranks. It must not know what a word means.

Gradients go through the default group, on the device's own backend. Four more groups on gloo carry a few
numbers each: which examples come next (for the loader's thread), what to do now (for the loop), fresh losses
back, and which files of a checkpoint are written (for its thread). They are separate because a group must be
used from one thread only, and because a user's own loop has collectives of its own on the default group.

Every wait has a deadline, except for rank 0's next word: that wait ends if rank 0 ends, or if rank 0's loop
or loader hangs in a duty (`duty.py`). `watch.py` detects both.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sbpipe.errors import DeviceError, RankLost
from sbpipe.machine.copies import Arrival, Downloads
from sbpipe.records import Ids
from sbpipe.trainer.duty import Duty
from sbpipe.trainer.ranks.meeting import join_ranks
from sbpipe.trainer.ranks.share import joined, largest_share
from sbpipe.trainer.ranks.watch import Watch
from sbpipe.trainer.ranks.word import LENGTH, Word

_SIGNS = ("gloo", "nccl", "xccl", "connection", "timed out", "timeout")
"""Words by which to recognise torch's plain RuntimeErrors that mean that another rank is gone."""
_POLL_S = 0.02
_ENDLESS = timedelta(days=3650)


class Group:
    """The ranks of one run, seen from one of them."""

    def __init__(
        self, rank: int, world: int, device: torch.device, *, batch_size: int, wait_s: float
    ) -> None:
        """The default group is made unless it is there already, as it is in a user's own loop."""
        self.rank, self.world, self.device = rank, world, device
        self.batch_size = batch_size
        self._wait = timedelta(seconds=wait_s)
        self.downloads = Downloads(device)
        self._told: dist.Work | None = None
        self.loop, self.loader = Duty(wait_s), Duty(wait_s)
        """The duties of rank 0's two threads, which the other ranks wait for."""
        with self.waiting_for("all ranks to start"):
            if not dist.is_initialized():
                join_ranks(_backend_of(device), rank=rank, world=world, wait_s=wait_s)
            self._watch = Watch(wait_s, overdue=lambda: self.loop.overdue or self.loader.overdue)
            # No deadline: rank 0 is silent for as long as its work takes, and the watch sees whether it
            # lives.
            self._orders, self._words = (self._side_group(_ENDLESS) for _ in range(2))
            self._losses, self._saves = (self._side_group(self._wait) for _ in range(2))

    @staticmethod
    def _side_group(wait: timedelta) -> dist.ProcessGroup:
        group = dist.new_group(backend="gloo", timeout=wait)
        assert isinstance(group, dist.ProcessGroup)
        return group

    def leave(self, *, is_fine: bool = True) -> None:
        """Stop waiting for other ranks; `is_fine`: tell the others that they need not wait for this one
        either.
        """
        self._watch.leave(is_fine=is_fine)

    @contextlib.contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Turn the end of another rank into a RankLost that names the broken wait and the way out."""
        try:
            yield
        except RuntimeError as error:
            text = str(error)
            is_lost = isinstance(error, dist.DistError) or any(sign in text.lower() for sign in _SIGNS)
            if not is_lost:
                raise
            raise RankLost(
                f"rank {self.rank} of {self.world} waited for {what}: another rank has ended, or was silent "
                f"for train.ranks_wait_s = {self._wait.total_seconds():g} ({text.splitlines()[0][:160]}). "
                "Look into the other ranks' output; torchrun --max-restarts N starts all of them again"
            ) from error

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model whose backward pass averages gradients over the ranks; buffers are rank 0's.

        The graph is static, so DDP copies less: 30 instead of 34 ms for a step of the small net.
        """
        devices = None if self.device.type == "cpu" else [self.device.index]
        with self.waiting_for("all ranks to hold the same weights"):
            return DistributedDataParallel(
                model, device_ids=devices, static_graph=True, gradient_as_bucket_view=True
            )

    # --- the loader's thread ----------------------------------------------------------------------

    def order(self, example_ids: Ids, epochs: Ids) -> None:
        """Rank 0 names the examples of the next batch."""
        row = np.zeros(1 + 2 * self.batch_size, np.int64)
        row[0] = len(example_ids)
        row[1:] = np.resize(np.concatenate([example_ids, epochs]), 2 * self.batch_size)
        self._broadcast(torch.from_numpy(row), self._orders, "the other ranks to take the next batch")

    def order_end(self) -> None:
        """Rank 0 says that there are no more batches."""
        self.order(np.empty(0, np.int64), np.empty(0, np.int64))

    def next_order(self) -> tuple[Ids, Ids] | None:
        """The other ranks receive it; None = there are no more."""
        row = torch.empty(1 + 2 * self.batch_size, dtype=torch.int64)
        self._broadcast(row, self._orders, "rank 0 to name the next batch")
        count = int(row[0])
        both = row[1 : 1 + 2 * count].numpy()
        return (both[:count], both[count:]) if count else None

    # --- the loop ---------------------------------------------------------------------------------

    def tell(self, word: Word) -> None:
        """Rank 0 says what to do now. It does not wait for the others until it sends the next word."""
        with self.waiting_for(f"the other ranks to hear of step {word.step}"):
            if self._told is not None:
                self._told.wait()
            self._told = self._start_broadcast(word.row)
            if word.table is not None:
                self._told.wait()
                self._told = self._start_broadcast(word.table)

    def _start_broadcast(self, values: torch.Tensor) -> dist.Work:
        work = dist.broadcast(values, src=0, group=self._words, async_op=True)
        assert work is not None, "rank 0 is one of the group"
        return work

    def flush(self) -> None:
        """Wait until all ranks have received the last word."""
        with self.waiting_for("the other ranks to hear the last word"):
            if self._told is not None:
                self._told.wait()
            self._told = None

    def hear(self) -> Word:
        """The other ranks receive a word."""
        row = torch.empty(LENGTH, dtype=torch.float64)
        self._broadcast(row, self._words, "rank 0 to say what to do next")
        word, num_table = Word.of(row), int(row[-1])
        if not num_table:
            return word
        table = torch.empty(num_table, dtype=torch.float64)
        self._broadcast(table, self._words, "rank 0 to say how to weigh the step")
        return replace(word, table=table)

    def spread(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        """Broadcast a tensor of rank 0; the others pass one of the same size to receive it."""
        self.flush()
        self._broadcast(tensor, self._words, what)
        return tensor

    def spread_text(self, value: Any) -> Any:
        """Broadcast a plain value of rank 0, as JSON."""
        self.flush()
        return self._broadcast_text(value, self._words, "rank 0's state")

    def agree(self, is_fine: bool, what: str) -> bool:
        """Whether `is_fine` holds on all ranks."""
        self.flush()
        found = torch.tensor([int(is_fine)])
        with self.waiting_for(what):
            dist.all_reduce(found, dist.ReduceOp.MIN, group=self._losses)
        return bool(found)

    def gather(self, losses: torch.Tensor, count: int) -> "Gathering":
        """Gather the fresh losses of all shares of a batch of `count` on rank 0."""
        return Gathering(self, losses, count)

    def start_gather(self, share: torch.Tensor, into: list[torch.Tensor] | None) -> dist.Work:
        """Start to gather shares on rank 0."""
        work = dist.gather(share, into, dst=0, group=self._losses, async_op=True)
        assert work is not None, "this rank is one of the group"
        return work

    # --- the thread of checkpoints ----------------------------------------------------------------

    def spread_save(self, name: str) -> str:
        """Rank 0 names the folder of a checkpoint; all ranks return it."""
        said: str = self._broadcast_text(name, self._saves, "rank 0 to say where its checkpoint lies")
        return said

    def gather_save(self, word: Any, on_piece: Callable[[], None] = lambda: None) -> list[Any] | None:
        """Gather on rank 0 what each rank has written, as JSON; None on the others.

        `on_piece` is called during the wait: other ranks may have more to write, or a slower disk.
        """
        what = "all ranks to write their shares of a checkpoint"
        content = torch.frombuffer(bytearray(json.dumps(word).encode()), dtype=torch.uint8)
        sizes = [torch.empty(1, dtype=torch.int64) for _ in range(self.world)]
        with self.waiting_for(what):
            work = dist.all_gather(sizes, torch.tensor([len(content)]), group=self._saves, async_op=True)
            assert work is not None, "this rank is one of the group"
            while not work.is_completed():
                on_piece()
                time.sleep(_POLL_S)
            work.wait()
            longest = int(max(sizes))
            into = [torch.empty(longest, dtype=torch.uint8) for _ in sizes] if self.rank == 0 else None
            dist.gather(nn.functional.pad(content, (0, longest - len(content))), into, group=self._saves)
        if into is None:
            return None
        return [
            json.loads(text[: int(size)].numpy().tobytes()) for text, size in zip(into, sizes, strict=True)
        ]

    def _broadcast_text(self, value: Any, group: dist.ProcessGroup, what: str) -> Any:
        content = np.frombuffer(json.dumps(value).encode(), np.uint8).copy()
        size = torch.tensor([len(content)])
        self._broadcast(size, group, what)
        if self.rank:
            content = np.empty(int(size), np.uint8)
        self._broadcast(torch.from_numpy(content), group, what)
        return json.loads(content.tobytes())

    def _broadcast(self, values: torch.Tensor, group: dist.ProcessGroup, what: str) -> None:
        with self.waiting_for(what):
            dist.broadcast(values, src=0, group=group)


def _backend_of(device: torch.device) -> str:
    """The backend that carries gradients between devices of this type."""
    try:
        backend: str = dist.get_default_backend_for_device(device)
    except ValueError:
        backend = ""
    if not backend or not dist.is_backend_available(backend):
        found = (
            f"this build of PyTorch has no {backend}" if backend else "PyTorch has nothing that carries them"
        )
        raise DeviceError(
            f"several ranks on {device}: they average gradients, and {found} for {device.type} devices. "
            "Set train.device = 'cpu', or train in one rank"
        )
    return backend


class Gathering:
    """Fresh losses on their way to rank 0, beside the backward pass."""

    def __init__(self, group: Group, losses: torch.Tensor, count: int) -> None:
        self._group, self._count = group, count
        size = largest_share(count, group.world)
        self._own = torch.zeros(size, dtype=torch.float32)
        self._all = [torch.empty(size) for _ in range(group.world)] if group.rank == 0 else None
        self._arrival: Arrival | None = group.downloads([losses])
        self._num_losses = len(losses)
        self._work: dist.Work | None = None
        # Not yet for a device: the copy waits for the forward pass, and the host must not wait for it.
        if losses.device.type == "cpu":
            self._start()

    def _start(self) -> None:
        assert self._arrival is not None, "it was not started yet"
        self._own[: self._num_losses] = self._arrival.wait()[0].float()
        self._arrival = None
        with self._group.waiting_for("the fresh losses of all ranks"):
            self._work = self._group.start_gather(self._own, self._all)

    def wait(self) -> torch.Tensor | None:
        """The losses of the whole batch, on the CPU; None on the other ranks."""
        if self._work is None:
            self._start()
        with self._group.waiting_for("the fresh losses of all ranks"):
            assert self._work is not None, "it was started"
            self._work.wait()
        return None if self._all is None else joined(self._all, self._count)
