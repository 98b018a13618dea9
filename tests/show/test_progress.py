"""Lines of a run in the terminal: none is wider than the terminal, and the end tells what a user acts on."""

import io
import os
import shutil
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpipe.runs.names import NUMBERS
from sbpipe.show.terminal import (
    ENDING,
    Display,
    cut,
    selector_line,
    shown,
    summary_table,
    trainer_line,
)

EVENT: dict[str, Any] = {
    "share": 0.5,
    "step": 12345,
    "loss": 0.4321,
    "error": 0.0625,
    "staleness": 1.07,
    "idle": 0.125,
    "left_s": 75.0,
    "selectors": 1,
    "keep_rate": 0.333,
    "candidates_per_s": 4934.0,
    "selector_idle": 0.25,
}


class Screen(io.StringIO):
    """An output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def drawn(columns: int, rows: int, monkeypatch: pytest.MonkeyPatch, *lines: str) -> list[str]:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((columns, rows)))
    screen = Screen()
    if lines:
        Display(screen).lines(list(lines))
    else:
        Display(screen).show(EVENT)
    return screen.getvalue().splitlines()


def test_a_line_tells_what_is_known() -> None:
    assert trainer_line(EVENT).endswith("step 12345  loss 0.432  error 6.2%")
    assert trainer_line({}).endswith(" 0/s  left ?  staleness –  idle –  step 0  loss –  error –")
    assert selector_line({}) == "selectors 0 ready  keep –  idle –"


def test_a_line_tells_the_test_loss_and_the_users_own_metric_where_they_are_known() -> None:
    tested = {"test_loss": 0.25, "metric": 0.98765, "metric_name": "top5"}
    assert trainer_line(EVENT | tested).endswith("error 6.2%  test loss 0.250  top5 0.9877")


def test_eighty_columns_show_how_the_run_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, selector = drawn(80, 24, monkeypatch)
    for words in ("50%", "4,934/s", "left 1m15s", "staleness 1.07", "idle 12.5%"):
        assert words in trainer
    assert selector == "selectors 1 ready  keep 33.3%  idle 25.0%"


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 120, 200])
def test_live_lines_fit_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = drawn(columns, 24, monkeypatch)
    assert [line.split()[0] for line in lines] == ["trainer", "selectors"]
    assert max(map(len, lines)) < columns


def test_more_lines_than_the_terminal_has_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(80, 5, monkeypatch, *map(str, range(9))) == ["0", "1", "2", "3"]


@given(text=st.text(max_size=60), width=st.integers(1, 50))
def test_any_text_fits_any_width(text: str, width: int) -> None:
    found = cut(text, width)
    assert found.isprintable()
    assert (
        sum(0 if unicodedata.combining(x) else 1 + (unicodedata.east_asian_width(x) in "WF") for x in found)
        <= width
    )


def test_wide_letters_take_two_columns() -> None:
    assert cut("学習学習", 8) == "学習学習"
    assert cut("学習学習", 7) == "学習学…"
    assert cut("学習学習", 6) == "学習…"


def test_a_name_cannot_command_the_terminal() -> None:
    assert cut("evil\x1b[2J\r\nname", 40) == "evil\\x1b[2J\\r\\nname"


def test_a_number_is_shown_by_its_unit() -> None:
    assert shown("keep_rate", 0.333) == "33.3%"
    assert shown("wall_s", 75.0) == "1m15s"
    assert shown("staleness.mean", 1.05) == "1.05 steps"
    assert shown("steps", 12345) == "12,345"
    assert shown("candidates_per_s", 4934.2) == "4,934 / s"


def test_the_end_table_has_the_numbers_a_user_acts_on() -> None:
    summary = dict.fromkeys(NUMBERS, 1) | {"eval.metric_name": "top5"}
    table = summary_table(summary, 120).splitlines()
    assert len(table) == len(ENDING) + 1
    assert [line.split("  ")[1] for line in table[:3]] == ["test error", "test loss", "top5"]
    assert "1, 1" in table[-1]


def test_the_end_table_leaves_out_what_does_not_apply() -> None:
    table = summary_table(dict.fromkeys(ENDING) | {"steps": 7, "eval.loss": 0.25})
    assert [line.split("  ")[1] for line in table.splitlines()] == ["test loss", "steps"]


def test_the_end_table_breaks_no_word_on_a_narrow_terminal() -> None:
    summary = dict.fromkeys(NUMBERS, 1) | {"eval.metric_name": "top5"}
    narrow, wide = (summary_table(summary, width) for width in (80, 200))
    assert max(map(len, narrow.splitlines())) <= 80
    assert narrow.split() == wide.split()
    assert len(narrow.splitlines()) > len(wide.splitlines())


def test_what_is_said_breaks_between_words_on_a_terminal_and_not_at_all_in_a_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((60, 24)))
    words = "measured fp32 1,522/s (ranks like fp32 to 1.000), int8 2,397/s; its log: /very/" + "long/" * 20
    screen, log = Screen(), io.StringIO()
    Display(screen).say(words)
    Display(log).say(words)
    assert log.getvalue() == f"{words}\n"
    assert screen.getvalue().split() == words.split()
    assert len(screen.getvalue().splitlines()[0]) <= 60
