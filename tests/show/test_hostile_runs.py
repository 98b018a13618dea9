"""Run directories that somebody tampered with: shown with everything escaped, or refused in one line."""

import json
import logging
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.synthetic_run import write_run
from support.written_studies import write_study

from sbpipe.cli import main
from sbpipe.errors import PeerRejected, RunDirError
from sbpipe.runs import json_file, read_study
from sbpipe.runs.directory import RunDir, resumed
from sbpipe.runs.follower import Follower
from sbpipe.runs.names.files import LOCK
from sbpipe.show.live.finder import find
from sbpipe.show.live.top import lines_now
from sbpipe.show.live.watcher import Watcher
from sbpipe.show.report import page
from sbpipe.show.report.build import build_report, lead_of, read_sources, sections_of, title_of
from sbpipe.show.report.trace import write_trace
from sbpipe.show.terminal import cut
from sbpipe.show.trackers.scalars import scalars_of, without_taken_back
from sbpipe.text import LogFormatter, visible

NOBODY = 65534
SCRIPT = "<script>alert(1)</script>"
CODES = "\x1b]0;evil\x07\x1b[2J\r\n\u202e"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


STRANGE: list[Any] = [
    None, True, 0, -1, 1e308, 10**400, float("nan"), float("inf"), "", SCRIPT, CODES, "\ud800", "a" * 5000,
    [], [1], ["x"], [[]], [None], {}, {"a": 1}, {"a": [1, "x"]}, {"x": {}}, [1e308, 10**400], nested(50),
    nested(300),
]  # fmt: skip
LINES = [
    "[",
    "[]",
    "null",
    "{}",
    "[" * 100_000,
    "\0",
    *(f'{{"kind":"{kind}"}}' for kind in ("step", "summary")),
]


def tampered(rng: random.Random, table: Any) -> Any:
    """A table with one value replaced or taken away, at any depth."""
    if not isinstance(table, dict) or not table:
        return table
    changed = dict(table)
    name = rng.choice(list(changed))
    if isinstance(changed[name], dict) and rng.random() < 0.5:
        changed[name] = tampered(rng, changed[name])
    elif rng.random() < 0.25:
        del changed[name]
    else:
        changed[name] = rng.choice(STRANGE)
    return changed


def tamper(rng: random.Random, folder: Path) -> None:
    for path in rng.sample(sorted(folder.glob("*.json*")), 3):
        if path.suffix == ".json":
            table = tampered(rng, tampered(rng, json.loads(path.read_text())))
            path.write_text(json.dumps(table if rng.random() < 0.9 else rng.choice(STRANGE)))
            continue
        lines = path.read_text().splitlines()
        for k in rng.sample(range(len(lines)), 5):
            is_line = rng.random() < 0.2
            lines[k] = rng.choice(LINES) if is_line else json.dumps(tampered(rng, json.loads(lines[k])))
        path.write_text("\n".join(lines) + "\n")


def page_of(folder: Path) -> str:
    sources = read_sources([folder])
    for run in sources.runs:
        write_trace(run, folder / "trace.json")
    return page.html_page(title_of(sources), lead_of(sources), sections_of(sources), None, [])


def top_of(folder: Path) -> str:
    watcher = Watcher([folder])
    while watcher.look():
        pass
    return "\n".join(cut(line, 10_000) for line in lines_now(watcher))


def test_a_tampered_run_is_shown_and_everything_in_it_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_vega", lambda: "")
    write_run(tmp_path / "whole", steps=12)
    for seed in range(30):
        folder = tmp_path / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", folder)
        tamper(random.Random(seed), folder)
        html = page_of(folder)
        html.encode()
        assert SCRIPT not in html, seed
        assert "\x1b" not in top_of(folder), seed
        events = without_taken_back(Follower(folder / "events-trainer.jsonl").new_events())
        assert all(isinstance(value, float) for event in events for value in scalars_of(event).values())


def test_words_of_a_run_are_shown_escaped_and_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_vega", lambda: "")
    write_run(tmp_path / "run", steps=12)
    with (tmp_path / "run" / "events-trainer.jsonl").open("a") as file:
        file.write(
            json.dumps({"t": 1.8e9, "clock": 9.9e3, "role": "trainer", "kind": "warning", "text": SCRIPT})
            + "\n"
        )
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page_of(tmp_path / "run")


DAMAGED = ["", "[]", "null", "{", "[" * 100_000, '{"model": 3}', '{"seed": "x"}', '{"cells": [3], "kind": 7}']


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: content[:12])
def test_a_run_or_study_whose_files_are_none_is_refused_in_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(RunDirError, match=r"the settings of the run in .* cannot be read"):
        resumed(tmp_path, {})
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(RunDirError, match="is not a sweep or comparison"):
        read_study(tmp_path)


@pytest.mark.parametrize("name", ["../../x", "/etc", "..", ".", "", "a/b", 3, None])
def test_a_cell_outside_its_study_is_refused(name: Any, tmp_path: Path) -> None:
    study = write_study(tmp_path, "comparison", {"a": {"arm": "a", "seed": 0}})
    plan = json.loads((study / "plan.json").read_text())
    plan["cells"][0]["cell"] = name
    (study / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(RunDirError, match=r"is no cell's name.*Name a folder that"):
        read_study(study)


@pytest.mark.parametrize(
    ("file", "part", "said"),
    [
        ("plan.json", {"cells": []}, "cells in plan.json is empty"),
        ("plan.json", {"tasks": 5}, "tasks in plan.json is no list"),
        ("results.json", {"analysis": None}, "analysis in results.json is no dict"),
        ("results.json", {"rows": None}, "rows in results.json is no list"),
    ],
)
def test_a_study_with_a_part_of_another_type_is_refused(
    file: str, part: dict[str, Any], said: str, tmp_path: Path
) -> None:
    study = write_study(tmp_path, "comparison", {"a": {"arm": "a", "seed": 0}})
    (study / file).write_text(json.dumps(json.loads((study / file).read_text()) | part))
    with pytest.raises(RunDirError, match=rf"is not a sweep or comparison \({said}\)"):
        read_study(study)


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", " " * (json_file.MOST_BYTES + 1)], ids=len)
def test_a_note_beside_a_cell_that_cannot_be_read_is_left_out(content: str, tmp_path: Path) -> None:
    study = write_study(tmp_path, "comparison", {"a": {"arm": "a", "seed": 0, "errors": [0.5]}})
    (study / "cells" / "a.json").write_text(content)
    found = find([study])
    assert list(found.runs) == ["a"]
    assert found.studies[0]["waiting"] == 1
    assert read_study(study).cells[0].state() == {}


# --- what peers say -------------------------------------------------------------------------------


def test_what_a_terminal_would_obey_is_written_out() -> None:
    assert visible("naïve 漢字 ░") == "naïve 漢字 ░"
    assert visible(CODES) == r"\x1b]0;evil\x07\x1b[2J\r\n\u202e"
    assert visible("a\nb\x1b", keep="\n") == "a\nb\\x1b"
    assert visible("\ud800").encode() == b"\\ud800"


def test_a_peers_words_stay_on_one_line_of_the_log() -> None:
    record = logging.LogRecord(
        "sbpipe", logging.INFO, "", 0, "selector %s left", (f"x{CODES}12:00:00 done",), None
    )
    line = LogFormatter("%(message)s").format(record)
    assert line.isprintable()
    assert "done" in line


def test_a_reason_that_a_peer_gave_reaches_the_terminal_as_one_plain_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: object) -> int:
        raise PeerRejected(f"bad{CODES}sbpipe: all is well")

    monkeypatch.setattr("sbpipe.commands.doctor.run", run)
    monkeypatch.setattr("sbpipe.cli._leave", lambda code: None)
    main(["doctor"])
    said = capsys.readouterr().err
    assert said.startswith("sbpipe: bad\\x1b")
    assert said.rstrip("\n").isprintable()


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file that a link of another user's leads to."""
    if os.geteuid() != 0:
        pytest.skip("only root can leave links of another user")
    path = tmp_path / "precious"
    path.write_text("years of work")
    return path


def plant(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)


@pytest.mark.parametrize("planted", [LOCK, "logs/trainer.log", "logs", "events-trainer.jsonl", "checkpoints"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_link_of_another_user_takes_no_run_elsewhere(
    planted: str, resume: bool, tmp_path: Path, precious: Path
) -> None:
    run = tmp_path / "run"
    plant(run / planted, precious)
    if resume:
        (run / "config.json").write_text("{}")
    elif planted not in (LOCK, "logs", "logs/trainer.log"):
        pytest.skip("where that lies no new run begins")
    with pytest.raises(RunDirError, match="is a link of user 65534"):
        RunDir.open(run, resume=resume, overwrite=False)
    assert precious.read_text() == "years of work"


@pytest.mark.parametrize("planted", ["trace.json", "figures", "figures/timeline.svg"])
def test_a_report_is_not_written_through_a_link_of_another_user(
    planted: str, tmp_path: Path, precious: Path
) -> None:
    write_run(tmp_path / "run", steps=12)
    plant(tmp_path / "run" / planted, precious)
    with pytest.raises(RunDirError, match="is a link of user 65534"):
        build_report([tmp_path / "run"], tmp_path / "run" / "report.html")
    assert precious.read_text() == "years of work"


def test_a_link_of_ones_own_is_followed(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "logs").symlink_to(tmp_path / "scratch")
    RunDir.open(tmp_path / "run", resume=False, overwrite=False).close()
