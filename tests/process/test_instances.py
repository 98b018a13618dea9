"""Several selectors of one host: devices and cores in turn."""

import pytest

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
