"""Run directories as they may be found: very long, resumed in the middle of a window, damaged, forged."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from sbpipe.runs import follower as follower_module
from sbpipe.runs import read_run
from sbpipe.runs.curve import curve_of, time_to_target
from sbpipe.runs.follower import Follower
from sbpipe.runs.gathering import Evaluations, FirstAndLast, Scores, StepCurve
from sbpipe.show.report.build import build_report
from tests.support.synthetic_run import write_run


def step(number: int, **fields: Any) -> dict[str, Any]:
    return {"kind": "step", "step": number, "loss": float(number), **fields}


def steps(first: int, last: int) -> dict[str, Any]:
    middle, count = (first + last) / 2, last - first + 1
    told = {"loss": middle, "loss_low": float(first), "loss_high": float(last)}
    return {"kind": "steps", "first": first, "step": last, "count": count, **told}


def write(run: Path, *events: dict[str, Any]) -> Path:
    run.mkdir(exist_ok=True)
    (run / "config.json").write_text("{}")
    (run / "environment.json").write_text("{}")
    (run / "events-trainer.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return run


# --- long runs ------------------------------------------------------------------------------------


def test_windows_and_single_steps_make_one_curve(tmp_path: Path) -> None:
    run = read_run(write(tmp_path / "run", step(0), step(1), steps(2, 5), steps(6, 13)))
    assert run.num_steps == 14
    assert [(row.first, row.last) for row in run.steps] == [(0, 0), (1, 1), (2, 5), (6, 13)]
    assert sum((row.loss or 0.0) * row.num_steps for row in run.steps) == sum(range(14))


def test_a_resume_in_the_middle_of_a_window_counts_every_step_once(tmp_path: Path) -> None:
    events = (steps(0, 7), steps(8, 15), {"kind": "resumed", "step": 12}, steps(8, 15), steps(16, 23))
    run = read_run(write(tmp_path / "run", *events))
    assert [(row.first, row.last) for row in run.steps] == [(0, 7), (8, 15), (16, 23)]


def test_a_long_curve_is_merged_and_its_mean_and_extremes_stay() -> None:
    curve = StepCurve(most=64)
    for number in range(1000):
        curve.add(step(number))
    assert len(curve.rows) < 64
    assert sum(row.num_steps for row in curve.rows) == 1000
    assert sum((row.loss or 0.0) * row.num_steps for row in curve.rows) == pytest.approx(sum(range(1000)))
    assert (curve.rows[0].low, curve.rows[-1].high) == (0.0, 999.0)


def test_of_many_events_the_first_and_the_last_are_kept() -> None:
    kept = FirstAndLast(3)
    for number in range(10):
        kept.add({"kind": "progress", "step": number})
    assert [event["step"] for event in kept.events()] == [0, 1, 2, 9]
    kept.take_back(1)
    assert [event["step"] for event in kept.events()] == [0, 1]


def test_thinned_evaluations_still_tell_when_any_error_was_first_reached(tmp_path: Path) -> None:
    errors = [0.9 - 0.0001 * k + 0.05 * ((k * 7) % 11) / 11 for k in range(5000)]
    evals = [{"kind": "eval", "step": k, "error": e, "elapsed_s": float(k)} for k, e in enumerate(errors)]
    kept = Evaluations(most=2000)
    for event in evals:
        kept.add(event)
    assert len(kept.events()) <= 2000
    thinned = [(event["elapsed_s"], event["error"]) for event in kept.events()]
    for target in (0.9, 0.8, 0.61, 0.45):
        wanted = next(k for k, error in enumerate(errors) if error <= target)
        assert next(at for at, error in thinned if error <= target) == wanted
    curve, _ = curve_of(read_run(write(tmp_path / "run", *evals)))
    assert time_to_target(curve, 0.61) == next(k for k, error in enumerate(errors) if error <= 0.61)


def test_merged_scores_keep_their_counts() -> None:
    kept = Scores(most=8)
    for number in range(100):
        kept.add(
            {"kind": "scores", "step": number, "class_considered": [3, 1], "class_kept": [1, number % 2]}
        )
    assert len(kept.events()) <= 9
    assert [sum(event["class_considered"][k] for event in kept.events()) for k in (0, 1)] == [300, 100]
    assert [sum(event["class_kept"][k] for event in kept.events()) for k in (0, 1)] == [100, 50]


def test_a_run_without_an_end_is_as_far_as_its_recent_file_says(tmp_path: Path) -> None:
    run = write(tmp_path / "run", {"kind": "progress", "step": 10})
    (run / "recent-trainer.jsonl").write_text('{"kind":"progress","step":15}\n')
    assert [event["step"] for event in read_run(run).of("progress")] == [10, 15]


def test_a_run_that_goes_on_after_its_end_is_as_far_as_its_recent_file_says(tmp_path: Path) -> None:
    ended: tuple[dict[str, Any], ...] = ({"kind": "progress", "step": 10}, {"kind": "summary"})
    for more, known in (((), [10]), (({"kind": "start"}, {"kind": "resumed", "step": 10}), [10, 15])):
        run = write(tmp_path / "run", *ended, *more)
        (run / "recent-trainer.jsonl").write_text('{"kind":"progress","step":15}\n')
        assert [event["step"] for event in read_run(run).of("progress")] == known


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(path: Path, count: int) -> int:
        with path.open("w") as file:
            for number in range(count):
                file.write(json.dumps({"kind": "note", "step": number, "text": "x" * 2000}) + "\n")
        tracemalloc.start()
        read_run(path.parent)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    file = write(tmp_path / "run") / "events-trainer.jsonl"
    assert peak(file, 16_000) < 1.5 * peak(file, 4_000)


# --- damage ---------------------------------------------------------------------------------------

DAMAGE = {
    "cut": b'{"kind":"step","step":3,"lo\n',
    "nul": b"\x00" * 5000 + b"\n",
    "not text": b"\xff\xfe\x80\n",
    "deep": b'{"kind":' + b"[" * 200_000 + b"\n",
    "deep and whole": b'{"kind":"step","spans":' + b"[" * 50_000 + b"]" * 50_000 + b"}\n",
    "a list": b"[1,2,3]\n",
    "no kind": b'{"step":3}\n',
    "a kind that is no word": b'{"kind":{"a":1}}\n',
    "a word for a number": b'{"kind":"step","step":"three"}\n',
    "infinite": b'{"kind":"eval","error":1e999}\n',
    "a number no float can hold": b'{"kind":"eval","error":' + b"9" * 400 + b"}\n",
    "more digits than Python reads": b'{"kind":"eval","error":' + b"9" * 5000 + b"}\n",
    "spans of words": b'{"kind":"step","step":3,"spans":{"forward":["a","b"]}}\n',
    "spans that are none": b'{"kind":"step","step":3,"spans":[1,2]}\n',
    "a stamp of text": b'{"kind":"step","step":3,"t":"now"}\n',
}


@pytest.mark.parametrize("line", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_line_that_cannot_be_read_is_left_out_and_said(tmp_path: Path, line: bytes) -> None:
    path = write_run(tmp_path / "run", steps=12, leave_out=("examples.npz",))
    whole = read_run(path)
    for file in path.glob("events-*.jsonl"):
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join([*lines[:5], line, *lines[5:], line]))
    damaged = read_run(path)
    assert (damaged.events, damaged.selections, damaged.steps) == (
        whole.events,
        whole.selections,
        whole.steps,
    )
    assert sum("2 damaged lines were left out" in note for note in damaged.notes) == 2
    page = build_report([path], path / "report.html", figures=False).read_text()
    assert "2 damaged lines were left out" in page


def test_a_line_longer_than_a_piece_is_one_damaged_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "CHUNK_BYTES", 1000)
    file = tmp_path / "e.jsonl"
    file.write_bytes(b'{"kind":"a"}\n' + b"x" * 50_000 + b'\n{"kind":"b"}\n' + b"y" * 7_000)
    follower = Follower(file)
    assert [event["kind"] for event in follower.stream()] == ["a", "b"]
    assert "2 damaged lines" in follower.notes[0]
    with file.open("ab") as more:
        more.write(b'yyy\n{"kind":"c"}\n')
    assert [event["kind"] for event in follower.stream()] == ["c"]


FORGED = {
    "config.json": [b"[1]", b"[" * 200_000, b'{"data":3,"selection":"x","train":[]}', b"\x00\x00", b'"text"'],
    "summary.json": [b'{"status":3,"steps":"many","eval.error":[1]}', b'{"wall_s":1e999}', b"{" * 100_000],
    "environment.json": [b'{"versions":[1],"devices":"cpu","cores":{}}', b"null"],
}


@pytest.mark.parametrize(
    ("name", "content"), [(name, content) for name, contents in FORGED.items() for content in contents]
)
def test_a_forged_file_makes_a_report_all_the_same(tmp_path: Path, name: str, content: bytes) -> None:
    path = write_run(tmp_path / "run", steps=12)
    (path / name).write_bytes(content)
    build_report([path], path / "report.html", figures=False)
