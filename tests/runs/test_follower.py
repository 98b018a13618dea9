"""Following files that grow, are cut, damaged, replaced or not there yet."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbpipe.runs import follower as follower_module
from sbpipe.runs.follower import Follower, RunFollower


def write(run: Path, *events: dict[str, Any], name: str = "events-trainer.jsonl") -> Path:
    run.mkdir()
    (run / "config.json").write_text("{}")
    (run / name).write_text("".join(json.dumps(event) + "\n" for event in events))
    return run


def test_a_line_is_read_once_and_only_when_whole(tmp_path: Path) -> None:
    file = tmp_path / "e.jsonl"
    file.write_text('{"kind":"a"}\n{"kind":')
    follower = Follower(file)
    first = follower.look()
    assert [found["kind"] for found in first.events] == ["a"]
    assert "the last line is cut" in first.notes[0]
    with file.open("a") as more:
        more.write('"b"}\n')
    second = follower.look()
    assert ([found["kind"] for found in second.events], second.notes) == (["b"], [])
    assert follower.look().events == []


def test_damaged_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "e.jsonl"
    file.write_bytes(b'{"kind":"a"}\n\x00\x00garbage\n[1]\n{"no":"kind"}\n{"kind":"b"}\n')
    news = Follower(file).look()
    assert [found["kind"] for found in news.events] == ["a", "b"]
    assert news.notes == ["e.jsonl: 3 damaged lines were left out"]


def test_a_replaced_file_begins_anew_even_when_it_is_longer(tmp_path: Path) -> None:
    file = tmp_path / "e.jsonl"
    file.write_text('{"t":1,"kind":"a"}\n')
    follower = Follower(file)
    follower.look()
    file.write_text('{"t":2,"kind":"b"}\n{"t":3,"kind":"c"}\n')
    news = follower.look()
    assert news.is_anew
    assert [found["kind"] for found in news.events] == ["b", "c"]


def test_a_long_backlog_comes_in_pieces_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "CHUNK_BYTES", 1000)
    run = write(
        tmp_path / "run", *({"kind": "step", "step": number, "padding": "x" * 200} for number in range(50))
    )
    follower, steps, num_looks = RunFollower(run), [], 0
    while True:
        news = follower.look()
        num_looks += 1
        steps += [found["step"] for found in news.events]
        if not news.is_more:
            break
    assert steps == list(range(50))
    assert num_looks > 5


def test_of_a_selector_only_the_end_is_read_and_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "TAIL_BYTES", 500)
    run = write(
        tmp_path / "run",
        *({"kind": "selection", "lease": k, "padding": "x" * 40} for k in range(100)),
        name="events-selector-s1.jsonl",
    )
    news = RunFollower(run).look()
    assert 0 < len(news.events) < 10
    assert news.events[-1]["lease"] == 99
    assert {found["selector"] for found in news.events} == {"s1"}


@pytest.mark.parametrize(("prepare", "said"), [
    (lambda run: None, "the directory is empty"),
    (lambda run: (run / "events-trainer.jsonl").touch(), "config.json is missing"),
    (lambda run: (run / "config.json").touch(), "config.json is empty"),
    (lambda run: (run / "events-trainer.jsonl").write_bytes(b"\xff\xfe"), "the last line is cut"),
    (lambda run: run.rmdir(), "is gone"),
])  # fmt: skip
def test_what_is_wrong_with_a_directory_is_said(
    tmp_path: Path, prepare: Callable[[Path], object], said: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    prepare(run)
    news = RunFollower(run).look()
    assert news.events == []
    assert said in " ".join(news.notes)


def test_a_backlog_of_many_pieces_is_read_at_once_where_all_of_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "CHUNK_BYTES", 64)
    file = tmp_path / "e.jsonl"
    file.write_text("".join(f'{{"kind":"step","step":{k}}}\n' for k in range(100)))
    follower = Follower(file)
    assert [event["step"] for event in follower.new_events()] == list(range(100))
    assert follower.new_events() == []


def test_what_is_wrong_with_a_file_becomes_a_note(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "nowhere.jsonl")
    assert follower.new_events() == []
    assert "nowhere.jsonl is missing" in follower.notes[0]
