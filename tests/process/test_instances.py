"""Several selectors of one host: devices and cores in turn, ended together, started again when killed."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.runs import HANG_S, Forked, events_of, settings, started, summary_of, wait_for

from sbpipe.config import resolve
from sbpipe.errors import ConfigError
from sbpipe.process.instances import instances_of, shared_cores


def value_of(command: list[str], key: str) -> str:
    (found,) = [part.partition("=")[2] for part in command if part.startswith(f"{key}=")]
    return found.strip('"')


def test_devices_are_given_out_in_turn() -> None:
    given = {"selector.device": "cuda:0,cuda:1", "link.connect": "tcp://host:1"}
    made = instances_of(resolve(given), given, 5, "--job", "x")
    assert [value_of(one.command, "selector.device") for one in made] == [
        "cuda:0",
        "cuda:1",
        "cuda:0",
        "cuda:1",
        "cuda:0",
    ]
    assert all(one.command[-2:] == ["--job", "x"] and one.cores is None for one in made)
    assert {value_of(one.command, "link.connect") for one in made} == {"tcp://host:1"}


def test_on_the_cpu_each_has_cores_of_its_own_as_long_as_there_are_some() -> None:
    eight = list(range(8))
    assert [shared_cores(k, 4, 0, eight) for k in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [shared_cores(k, 3, 1, eight) for k in range(3)] == [[0], [1], [2]]
    assert [shared_cores(k, 3, 0, [5, 6]) for k in range(3)] == [[5], [6], [5]]


@pytest.mark.parametrize(("count", "reason"), [(0, "must be 1 to"), (1, "names 2 devices")])
def test_wrong_numbers_are_refused(count: int, reason: str) -> None:
    given = {"selector.device": "cuda:0,cuda:1"}
    with pytest.raises(ConfigError, match=reason):
        instances_of(resolve(given), given, count)


@pytest.mark.timeout(2 * HANG_S)
def test_instances_serve_a_trainer_are_started_again_when_killed_and_end_with_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    budget = settings(train__steps=0, train__seconds=600.0, selection__late="fill")
    with ExitStack() as stack:
        trainer = Forked("trainer", "--run-dir", str(path), *budget)
        stack.callback(trainer.kill)
        two = ("--instances", "2", "--device", "cpu")
        selectors = stack.enter_context(started("selector", *two, "--connect", str(path)))

        def ready() -> set[str]:
            # It fills what is late, and would train its budget alone: with a short one the selectors, which
            # need longer to start on a busy machine, would be waited for in vain.
            assert trainer.poll() is None, "the trainer ended before its selectors were there"
            events = events_of(path, "selector") if (path / "events-trainer.jsonl").exists() else []
            return {event["selector"] for event in events if event["state"] == "ready"}

        wait_for("two selectors", lambda: len(ready()) >= 2)
        # The name of a selector holds its process.
        os.kill(int(sorted(ready())[0].split("-")[-2]), signal.SIGKILL)
        wait_for("another one in its place", lambda: len(ready()) >= 3)
        trainer.send_signal(signal.SIGINT)
        wait_for("the end of the trainer", lambda: trainer.poll() is not None)
        wait_for("the end of the selectors", lambda: selectors.poll() is not None)
        said = "".join(selectors.communicate())
    assert "was ended by signal 9; starting it again" in said
    assert summary_of(path)["status"] == "stopped"
