"""A stranger gets nothing of a run; where something can be got, the bench sees it."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sbpipe.bench.stranger.attempts import Attempts
from sbpipe.bench.stranger.decoy import private_copy
from sbpipe.bench.stranger.measure import Schedule, measure_stranger, ratios
from sbpipe.bench.stranger.target import Target, Tried
from sbpipe.config import LinkConfig
from sbpipe.errors import ConfigError
from sbpipe.link.addresses import parse
from sbpipe.link.opening import Listener


def test_what_can_be_reached_is_counted(tmp_path: Path) -> None:
    (tmp_path / "open").write_text("secret")
    tried = Tried()
    attempts = Attempts(Target(files=(str(tmp_path / "open"), str(tmp_path / "gone" / "file"))), tried)
    for _ in range(4):
        attempts.once()
    assert (tried.messages, tried.reached) == (4, 2)


def test_each_window_is_compared_with_the_control_after_it() -> None:
    # 10 steps a second, but 5 in the third second.
    steps = [(float(second), count) for second, count in enumerate([0, 10, 20, 25, 35])]
    assert ratios(steps, 0.0, Schedule(1.0, 4)) == [1.0, 0.5]


def test_the_bench_refuses_who_cannot_become_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="only root can become another user"):
        measure_stranger(1.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("bind", ["auto", "tcp://127.0.0.1:0"])
def test_another_user_gets_nothing_of_a_trainer_and_does_not_end_it(bind: str, tmp_path: Path) -> None:
    listener = Listener(LinkConfig(bind=bind))
    endpoints, is_over = listener.port.endpoints, threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            listener.port.receive(0.05)

    trainer = threading.Thread(target=serve)
    trainer.start()
    if bind == "auto":
        paths = tuple(at.removeprefix("ipc://") for at in endpoints)
        target = Target(folders=(str(Path(paths[0]).parent),), sockets=paths, pids=(os.getpid(),))
    else:
        target = Target(ports=tuple(parse("link.bind", at).port for at in endpoints))
    # Half a second each, and the control is the same trainer's, so that all of it is looked at.
    control = private_copy(target, tmp_path) if bind == "auto" else target
    try:
        arguments = [0.5, 2, 400, target.to_json(), control.to_json()]
        command = [sys.executable, "-m", "sbpipe.bench.stranger.attacker", *map(str, arguments)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60)
    finally:
        is_over.set()
        trainer.join()
        listener.port.close()
        listener.withdraw()
    tried = [Tried(**found) for found in json.loads(done.stdout)["tried"]]
    assert tried[1].messages > 0
    assert [(one.reached, one.leaked_bytes) for one in tried] == [(0, 0), (0, 0)]
    assert bind == "auto" or tried[1].connections > 0
