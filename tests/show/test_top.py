"""`sbpipe top`: what the live page knows, as lines of text."""

import json
import time
from pathlib import Path
from typing import Any

from support.runs import sbpipe

from sbpipe.runs.directory import RunDir, is_held
from sbpipe.show.live.top import block_of, line_of, lines_now
from sbpipe.show.live.watcher import Watcher

HEAD: dict[str, Any] = {
    "name": "a",
    "state": "running",
    "mode": "pipelined",
    "policy": "sb",
    "share": 0.5,
    "step": 1234,
    "loss": 0.4321,
    "error": 0.0625,
    "left_s": 75.0,
    "staleness": 1.07,
    "idle": 0.125,
    "selector_idle": 0.25,
    "keep_rate": 0.333,
    "candidates_per_s": 4934.0,
    "selectors": 1,
}


def write(path: Path, *, age_s: float, status: str | None) -> Path:
    """A small run that wrote its last event some seconds ago."""
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    t = time.time() - age_s
    progress = {"share": 0.5, "step": 6, "loss": 0.5, "error": 0.25, "left_s": 9.0, "elapsed_s": 9.0}
    events: list[dict[str, Any]] = [{"kind": "start", "mode": "pipelined"}, {"kind": "progress", **progress}]
    events += [{"kind": "warning", "text": "keep is small"}]
    events += [{"kind": "summary", "status": status, "steps": 6}] if status else []
    (path / "events-trainer.jsonl").write_text(
        "".join(json.dumps({"t": t, "clock": t, **event}) + "\n" for event in events)
    )
    return path


def test_a_block_tells_how_a_run_stands() -> None:
    warnings = [{"text": text} for text in ("old", "lost", "a lease expired", "again")]
    title, trainer, selector, *rest = block_of(HEAD, {"warnings": warnings})
    assert title == "● a  running  pipelined  sb"
    assert trainer.endswith(
        "50%  4,934/s  left 1m15s  staleness 1.07  idle 12.5%  step 1234  loss 0.432  error 6.2%"
    )
    assert selector == "  selectors 1 ready  keep 33.3%  idle 25.0%"
    assert rest == ["  ! lost", "  ! a lease expired", "  ! again"]


def test_a_run_that_has_only_begun_is_shown_too() -> None:
    assert block_of({"name": "new", "state": "waiting"}, {})[0] == "● new  waiting  "
    assert line_of({"name": "new", "state": "stopped"}) == "● new  stopped  step 0  error –  ran ?"


def test_active_runs_come_first_and_whole(tmp_path: Path) -> None:
    write(tmp_path / "going", age_s=0.0, status=None)
    write(tmp_path / "done", age_s=60.0, status="finished")
    watcher = Watcher([tmp_path])
    watcher.look()
    title, going, _, _, warning, done = lines_now(watcher)
    assert title.endswith("1 active, 1 ended")
    assert (going, warning) == ("● going  running  pipelined", "  ! keep is small")
    assert done.startswith("● done  finished  step 6  error 25.0%")


def test_a_lock_is_seen_without_touching_it(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "run")
    run_dir = RunDir.open(tmp_path / "run", resume=False, overwrite=False)
    assert is_held(tmp_path / "run")
    run_dir.close()
    assert not is_held(tmp_path / "run")


def test_without_a_terminal_it_prints_once_and_nothing_a_terminal_would_obey(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "evil\x1b[2J", age_s=60.0, status="finished")
    done = sbpipe("top", cwd=tmp_path)
    assert (done.returncode, "\x1b" in done.stdout) == (0, False)
    assert "● evil\\x1b[2J  finished" in done.stdout


def test_a_path_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    done = sbpipe("top", "nowhere", cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere does not exist" in done.stderr
