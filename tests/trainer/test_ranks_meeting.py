"""Ranks meet anew after a restart, miss a rank that is gone, and no rank that is only silent."""

import os
import queue
import signal
import subprocess
import sys
import threading
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from support.ranked import PROCESSES, in_ranks
from support.runs import HANG_S

from sbpipe.machine.place import Place
from sbpipe.trainer.duty import Duty
from sbpipe.trainer.ranks.group import Group
from sbpipe.trainer.ranks.meeting import meet
from sbpipe.trainer.ranks.step import SharedSplit
from sbpipe.trainer.ranks.watch import Watch
from sbpipe.trainer.ranks.word import Do, Word

WAIT_S = 30.0


def store_of(port: int = 0) -> dist.TCPStore:
    """The store of a launcher, or a rank's connection to it."""
    return dist.TCPStore("127.0.0.1", port, is_master=not port, wait_for_workers=False)


def met(port: int, *ranks: int, world: int) -> dict[int, str]:
    """What some ranks that come at the same time agree on."""
    names: dict[int, str] = {}

    def come(rank: int) -> None:
        names[rank] = meet(store_of(port), rank, world, WAIT_S)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    return names


def test_ranks_that_are_started_again_meet_under_another_name() -> None:
    server = store_of()
    first, second = (met(server.port, 0, 1, 2, world=3) for _ in range(2))
    assert len(first) == len(second) == 3
    assert len(set(first.values())) == len(set(second.values())) == 1
    assert first[0] != second[0]


def test_a_rank_that_is_gone_does_not_stand_for_the_one_that_comes_in_its_place() -> None:
    server = store_of()
    with pytest.raises(dist.DistStoreError, match="rank 0 did not answer"):
        meet(store_of(server.port), 1, 2, 0.2)
    with pytest.raises(dist.DistStoreError, match="ranks 1 did not come"):
        meet(store_of(server.port), 0, 2, 0.2)
    names = met(server.port, 0, 1, world=2)
    assert len(names) == 2
    assert names[0] == names[1]


@pytest.mark.slow
def test_one_store_carries_groups_whose_agents_counted_restarts_each_for_itself() -> None:
    """A node that joins late counts no restart, where the others count one."""
    server = store_of()
    for counts in ((0, 0), (1, 0), (1, 0)):
        # One for each turn: a kill may take the lock of a queue with it.
        told = PROCESSES.Queue()
        ranks = [
            PROCESSES.Process(target=_be_counted, args=(server.port, rank, count, told))
            for rank, count in enumerate(counts)
        ]
        for process in ranks:
            process.start()
        try:
            assert sorted(told.get(timeout=HANG_S) for _ in ranks) == [3.0, 3.0]
        finally:
            for process in ranks:
                process.kill()


def _be_counted(port: int, rank: int, count: int, told: Any) -> None:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(count),
    }
    group = Group(rank, 2, torch.device("cpu"), batch_size=4, wait_s=WAIT_S)
    mean = torch.tensor([1.0 + rank])
    dist.all_reduce(mean)
    told.put(float(mean))
    group.leave()
    # Its addresses stay in the store, as a kill leaves them.
    signal.pause()


# --- the watch ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_rank_that_is_gone_ends_those_that_stand_in_a_call_which_nothing_ends() -> None:
    told = PROCESSES.Queue()
    server = store_of()
    ranks = [PROCESSES.Process(target=_stand, args=(server.port, rank, told)) for rank in range(3)]
    for process in ranks:
        process.start()
    try:
        for _ in ranks:
            told.get(timeout=HANG_S)
        ranks[1].kill()
        for process in (ranks[0], ranks[2]):
            process.join(HANG_S / 2)
        assert [process.exitcode for process in ranks] == [6, -signal.SIGKILL, 6]
    finally:
        for process in ranks:
            process.kill()


def _stand(port: int, rank: int, told: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    store = store_of(port)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3, timeout=timedelta(hours=1))
    Group(rank, 3, torch.device("cpu"), batch_size=4, wait_s=3600.0)
    told.put(rank)
    # A wait that no socket's end breaks, as behind a collective of a device.
    threading.Event().wait()


def _leave_in_turn(place: Place) -> list[str]:
    lost: queue.Queue[str] = queue.Queue()
    watch = Watch(WAIT_S, on_loss=lambda: lost.put("lost"))
    if place.rank:
        watch.leave()
    dist.barrier()
    watch.leave()
    return list(lost.queue)


@pytest.mark.slow
def test_a_rank_that_left_is_not_missed() -> None:
    assert in_ranks(_leave_in_turn) == [[], []]


ENDING = """
import atexit, sys
from datetime import timedelta
import torch
from sbpipe.trainer.ranks.group import Group, dist

rank = int(sys.argv[1])
store = dist.TCPStore("127.0.0.1", int(sys.argv[2]), is_master=False, wait_for_workers=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=300))
group = Group(rank, 2, torch.device("cpu"), batch_size=4, wait_s=300.0)
if rank == 0:
    sys.stdin.readline()
group.leave()


class Last:
    def __del__(self):
        sys.__stdin__.buffer.raw.readall()  # shutting down takes its time


sys.modules["last"] = Last()
atexit.register(print, "ending", flush=True)
"""


@pytest.mark.slow
def test_a_rank_that_ends_while_another_one_shuts_down_does_not_abort_it() -> None:
    server = store_of()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", ENDING, str(rank), str(server.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        assert ranks[1].stdout is not None
        assert ranks[1].stdout.readline() == "ending\n"
        ranks[0].communicate("end\n", timeout=HANG_S)
        _, said = ranks[1].communicate(timeout=HANG_S)
        assert [process.returncode for process in ranks] == [0, 0], said
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def _be_silent(place: Place) -> str:
    group = Group(place.rank, place.world, torch.device("cpu"), batch_size=4, wait_s=1.0)
    heard = ""
    if place.rank:
        heard = group.hear().do.name + str(group.next_order())
    else:
        group.loop.begin("training step 7")
        group.loop.end()
        threading.Event().wait(4.0)
        group.tell(Word(Do.END))
        group.flush()
        group.order_end()
    group.leave()
    return heard


@pytest.mark.slow
def test_a_rank_0_that_is_silent_for_longer_than_the_deadline_is_waited_for() -> None:
    assert in_ranks(_be_silent) == ["", "ENDNone"]


# --- rank 0 lives, and stands still ---------------------------------------------------------------


def test_a_duty_is_overdue_once_it_took_longer_than_the_others_wait() -> None:
    now = 0.0
    duty = Duty(10.0, now=lambda: now)
    for times in (1.0, 8.0):
        duty.begin("training step 3", times)
        now += 10.0 * times
        assert not duty.overdue
        now += 1.0
        assert duty.overdue == f"training step 3 for longer than {10 * times:g} s"
    duty.begin("training step 4")  # what is begun after it says that it has ended
    assert not duty.overdue
    with duty.during("loading a batch"):
        now += 11.0
        assert duty.overdue
    assert not duty.overdue


class Stuck:
    """Examples on a disk that does not answer."""

    def batch(self, example_ids: Any, epochs: Any) -> Any:
        threading.Event().wait()


def _stand_still(port: int, rank: int, where: str) -> None:
    dist.init_process_group("gloo", store=store_of(port), rank=rank, world_size=2, timeout=timedelta(hours=1))
    group = Group(rank, 2, torch.device("cpu"), batch_size=4, wait_s=3.0)
    if rank:
        group.next_order()
        group.hear()
    elif where == "loop":
        group.order(np.arange(4), np.zeros(4, np.int64))
        group.loop.begin("training step 3")
        threading.Event().wait()
    else:
        SharedSplit(Stuck(), group).batch(np.arange(4), 0)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["loop", "loader"])
def test_a_rank_0_that_lives_and_stands_still_ends_all_ranks_that_wait_for_its_next_word(where: str) -> None:
    server = store_of()
    ranks = [PROCESSES.Process(target=_stand_still, args=(server.port, rank, where)) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(HANG_S / 2)
        assert [process.exitcode for process in ranks] == [6, 6]
    finally:
        for process in ranks:
            process.kill()
