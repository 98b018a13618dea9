"""`sbpipe-health`: when a role counts as well, decided from ages alone."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

INF = float("inf")


def load_script() -> ModuleType:
    path = Path(__file__).parents[2] / "docker" / "healthcheck.py"
    spec = importlib.util.spec_from_file_location("healthcheck", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its own module up.
    sys.modules["healthcheck"] = module
    spec.loader.exec_module(module)
    return module


health = load_script()
PROCESS = health.Process(pid=7, fault="", age_s=100.0)


@pytest.mark.parametrize(
    ("connection_age_s", "events_age_s", "is_waiting", "is_well"),
    [
        (INF, INF, False, False),  # has not said where it listens
        (500.0, 1.0, False, False),  # what it said is of the start before this one
        (90.0, 1.0, False, True),
        (90.0, 80.0, False, False),
        (90.0, 80.0, True, True),
    ],
)
def test_a_trainer_is_well_while_it_speaks_or_waits(
    connection_age_s: float, events_age_s: float, is_waiting: bool, is_well: bool
) -> None:
    verdict = health.judge_trainer(
        PROCESS, connection_age_s, events_age_s, is_waiting=is_waiting, max_age_s=60.0
    )
    assert verdict.is_well is is_well


@pytest.mark.parametrize(
    ("answer_age_s", "trainer_age_s", "is_well"),
    [(1.0, 1.0, True), (80.0, 80.0, True), (80.0, INF, True), (80.0, 1.0, False), (INF, 1.0, False)],
)
def test_a_selector_is_sick_if_it_is_silent_while_its_trainer_is_not(
    answer_age_s: float, trainer_age_s: float, is_well: bool
) -> None:
    verdict = health.judge_selector(PROCESS, answer_age_s, trainer_age_s, max_age_s=60.0)
    assert verdict.is_well is is_well


def test_a_container_without_its_role_is_sick(tmp_path: Path) -> None:
    verdict = health.check("selector of nobody", tmp_path, 60.0)
    assert not verdict.is_well
    assert "there is no process" in verdict.reason
