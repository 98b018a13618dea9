"""Where the threads of `sbpipe.select` compute: beside the user's loop, if that leaves them cores."""

import os

import pytest
import torch

from sbpipe.ownloop.session import _spare_cores


@pytest.mark.parametrize(("threads", "has_room"), [(1, True), (2, True), (3, False), (8, False)])
def test_a_loop_that_computes_on_fewer_cores_than_it_may_use_leaves_room(
    threads: int, has_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 5, 6})
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert bool(_spare_cores()) == has_room
