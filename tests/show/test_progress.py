"""Lines of a run in the terminal: what is known is told, and nothing is wider than the terminal."""

import io
import os
import shutil
from typing import Any

import pytest

from sbpipe.show.terminal import Display, loop_words, summary_table, trainer_line

EVENT: dict[str, Any] = {
    **{
        "share": 0.5,
        "step": 12345,
        "loss": 0.4321,
        "error": 0.0625,
        "staleness": 1.07,
        "idle": 0.125,
        "left_s": 75.0,
    },
    **{"selectors": 1, "keep_rate": 0.333, "candidates_per_s": 4934.0, "selector_idle": 0.25},
}
LOOP = {"swing": 1.04, "strength": 0.84, "ess": 0.934, "guard": 1.0}
WORDS = "swing 1.0  strength 0.84  ess 0.93"


class Screen(io.StringIO):
    """An output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(event: dict[str, Any], columns: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24)))
    screen = Screen()
    Display(screen).show(event)
    return screen.getvalue().splitlines()


def test_the_line_of_an_older_run_ends_with_the_time_left() -> None:
    assert trainer_line(EVENT).endswith("left 1m15s")
    assert trainer_line(EVENT | dict.fromkeys(LOOP)).endswith("left 1m15s")


def test_the_trainers_line_tells_of_the_loop_what_is_known() -> None:
    assert trainer_line(EVENT | LOOP).endswith(f"left 1m15s  {WORDS}")
    assert trainer_line(EVENT | {"ess": 0.5}).endswith("left 1m15s  ess 0.50")


def test_the_guard_is_named_only_while_it_is_not_open() -> None:
    assert loop_words(LOOP) == WORDS
    assert loop_words({**LOOP, "guard": 0.5}) == f"{WORDS}  guard 0.50"


def test_a_wide_terminal_has_the_loop_in_the_trainers_line(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, selector = shown(EVENT | LOOP, 200, monkeypatch)
    assert trainer.endswith(WORDS)
    assert selector.startswith("selector")


@pytest.mark.parametrize("columns", [60, 80, 100, 120])
def test_a_narrow_terminal_gives_the_loop_a_line_of_its_own(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(EVENT | LOOP, columns, monkeypatch)
    assert lines[2] == f"loop     {WORDS}"
    assert "swing" not in lines[0]
    assert max(map(len, lines)) < columns
    assert len(shown(EVENT, columns, monkeypatch)) == 2


def test_the_end_table_says_what_the_numbers_of_the_loop_mean() -> None:
    table = summary_table(
        {"steps": 7, "selection.swing": 1.2, "selection.ess": 0.93, "selection.guard": None}
    )
    assert "swing             1.20 (class shares: 1 = calm" in table
    assert "0.93 of a train batch" in table
    assert "guard" not in table
