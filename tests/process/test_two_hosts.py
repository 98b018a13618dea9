"""Hosts that are namespaces of this one: a slow line with keys and no shared memory, a name that moves."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.runs import HANG_S, Forked, SlowMotion, events_of, forked, sbpipe, settings, summary_of, wait_for
from support.two_hosts import Line, lacking, train

from sbpipe.archives import read_npz
from sbpipe.runs.names.files import EXAMPLES, SUMMARY

NUM_EXAMPLES, EPOCHS = 1000, 2
PORT = 5570


@pytest.mark.slow
@pytest.mark.timeout(2 * HANG_S)
def test_two_selectors_on_another_host_choose_among_every_candidate_once(tmp_path: Path) -> None:
    if reason := lacking():
        pytest.skip(reason)
    run, line = tmp_path / "run", Line(selectors=2, latency_ms=20.0)
    given = settings(data__examples=NUM_EXAMPLES, train__epochs=EPOCHS, train__steps=0)
    train(run, line, given, wait_s=HANG_S)
    summary = json.loads((run / SUMMARY).read_text())
    assert summary["status"] == "finished"
    assert summary["candidates"] == summary["selector.scored"] == EPOCHS * NUM_EXAMPLES
    assert summary["sync.applied"] > 2, "weights cross the line while it trains"
    assert (summary["selector.lost"], summary["lease.expired"], summary["link.dropped"]) == (0, 0, 0)
    times = read_npz(run / EXAMPLES, ("times_considered",))["times_considered"]
    assert np.array_equal(times, np.full(NUM_EXAMPLES, EPOCHS))


def with_hosts(hosts: Path) -> list[str]:
    """What begins a command for which this file is /etc/hosts; skips the test where that cannot be."""
    own = 'mount --bind "$0" /etc/hosts && exec "$@"'
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", own, str(hosts)]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], check=False).returncode:
        pytest.skip("no namespace of mounts: what names mean cannot be changed here")
    return words


@pytest.mark.slow
@pytest.mark.timeout(2 * HANG_S)
def test_a_selector_finds_a_trainer_that_came_back_under_its_name_at_another_address(tmp_path: Path) -> None:
    run, keys, hosts = tmp_path / "run", tmp_path / "keys", tmp_path / "hosts"
    # Of no other test: the port is one that a firewall was told, so it cannot be any that is free.
    before, after = (f"127.77.{os.getpid() % 250}.{number}" for number in (1, 2))
    hosts.write_text(f"{before} trainer.example\n")
    own_hosts = with_hosts(hosts)
    assert sbpipe("keys", str(keys)).returncode == 0
    slow = SlowMotion(tmp_path)
    given = settings(train__steps=50, checkpoint__every=5, link__lost_after_s=2.0, loss__name=slow.loss)
    role = ("trainer", "--keys", str(keys), "--run-dir", str(run), "--bind")
    first = Forked(*role, f"tcp://{before}:{PORT}", *given, env=slow.env)
    words = [sys.executable, "-m", "sbpipe", "selector", "--connect", f"tcp://trainer.example:{PORT}"]
    words += ["--keys", str(keys / "selector.key"), "--set", f"link.orphan_timeout_s={HANG_S}"]
    words += ["--set", f"loss.name={slow.loss}"]
    selector = subprocess.Popen(
        [*own_hosts, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=slow.env
    )
    try:
        wait_for("a checkpoint", lambda: list((run / "checkpoints").glob("step-*.pt")))
        first.kill()
        first.communicate(timeout=HANG_S)
        # Into the same file: another one would not be what is mounted.
        hosts.write_text(f"{after} trainer.example\n")
        slow.ends()
        second = forked(*role, f"tcp://{after}:{PORT}", "--resume", env=slow.env)
        assert second.returncode == 0, second.stdout + second.stderr
        output, _ = selector.communicate(timeout=HANG_S)
    finally:
        selector.kill()
        selector.wait()
    assert selector.returncode == 0, output
    assert summary_of(run)["steps"] == 50
    assert events_of(run, "resumed")
