"""The live page as a reader sees it: a real `sbpipe watch`, a real browser, files that grow under it."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.browser import Browser, needs_chromium
from support.runs import HANG_S, sbpipe, start

pytestmark = [pytest.mark.browser, needs_chromium]
LAID = "document.querySelectorAll('.chart canvas').length >= 5"


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"t": time.time(), "clock": time.perf_counter(), "role": "trainer", "kind": kind, **fields}


def step(number: int) -> dict[str, Any]:
    now = time.perf_counter()
    fields = {
        "loss": 2.0,
        "staleness_mean": 1.0,
        "staleness_max": 2,
        "spearman": 0.5,
        "spans": {"forward": [now - 0.1, 0.1]},
    }
    return event("step", step=number, candidates=384 * (number + 1), **fields)


def append(run: Path, *events: dict[str, Any]) -> Path:
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.json").write_text("{}")
    with (run / "events-trainer.jsonl").open("a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in events)
    return run


@contextmanager
def watch(*arguments: str | Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A server and its address."""
    process = start("watch", *map(str, arguments))
    try:
        assert process.stdout is not None
        address = next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
        yield address, process
    finally:
        process.kill()
        process.communicate(timeout=HANG_S)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def laptop(browser: Browser) -> Browser:
    browser.open("about:blank")
    browser.set_viewport(1280, 900)
    browser.dark(False)
    return browser


def number(run: str, name: str) -> str:
    """A script that reads one of the numbers in a run's row."""
    return f'document.querySelector(\'[data-run="{run}"] [data-number="{name}"] b\')?.textContent'


def test_a_new_step_appears_by_itself(tmp_path: Path, laptop: Browser) -> None:
    run = append(tmp_path / "run", event("start", mode="pipelined"), step(0))
    with watch(run) as (address, _):
        laptop.open(address)
        laptop.wait_until(LAID)
        laptop.wait_until("document.getElementById('card-loss').dataset.rows === '1'")
        append(run, step(1), step(2))
        laptop.wait_until(f"{number('run', 'step')} === '3'")
        laptop.wait_until("document.getElementById('card-loss').dataset.rows === '3'")
        assert laptop.errors == []


def test_directories_without_a_whole_run_say_so(tmp_path: Path, laptop: Browser) -> None:
    (tmp_path / "empty").mkdir()
    half = append(tmp_path / "half", step(0))
    (half / "config.json").unlink()
    cut = append(tmp_path / "cut", step(0))
    with (cut / "events-trainer.jsonl").open("a") as file:
        file.write('rubbish\n{"t":1,"kind":"st')
    with watch(tmp_path / "empty", half, cut) as (address, _):
        laptop.open(address)
        laptop.wait_until("document.querySelectorAll('#runs > li').length === 3")
        said = laptop.wait_until(
            "[...document.querySelectorAll('#runs .notes')].map((note) => note.textContent).join('; ')"
        )
    for note in (
        "the directory is empty",
        "config.json is missing",
        "1 damaged line was left out",
        "the last line is cut",
    ):
        assert note in said
    assert laptop.errors == []


@pytest.mark.parametrize("is_dark", [False, True])
def test_a_phone_needs_no_scrolling_sideways(tmp_path: Path, laptop: Browser, is_dark: bool) -> None:
    run = append(
        tmp_path / "a-run-with-a-name-that-is-much-longer-than-a-phone-is-wide", *(step(k) for k in range(5))
    )
    append(run, event("warning", text="w" * 300))
    with watch(run) as (address, _):
        laptop.set_viewport(390, 844)
        laptop.dark(is_dark)
        laptop.open(address)
        laptop.wait_until(LAID)
        laptop.wait_until("document.getElementById('card-loss').dataset.rows === '5'")
        assert laptop.evaluate("document.documentElement.scrollWidth") <= 390
        assert (
            laptop.evaluate(
                "Math.max(...[...document.querySelectorAll('canvas')].map((c) => "
                "c.getBoundingClientRect().right))"
            )
            <= 390
        )
        paper = laptop.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", paper)[:3])) < 128) == is_dark
        assert laptop.errors == []


def test_runs_are_overlaid_and_the_address_remembers_which(tmp_path: Path, laptop: Browser) -> None:
    for name in ("one", "two"):
        append(tmp_path / name, step(0), event("summary", status="finished"))
    with watch(tmp_path) as (address, _):
        laptop.open(address)
        laptop.wait_until("document.querySelectorAll('#runs input:checked').length === 1")
        laptop.evaluate("document.querySelector('#runs input:not(:checked)').click()")
        laptop.wait_until("document.getElementById('card-loss')?.dataset.rows === '2'")
        laptop.evaluate("document.querySelector('#against input[value=step]').click()")
        remembered = laptop.wait_until("location.hash.includes('x=step') && location.href")
        colours = laptop.evaluate(
            "[...document.querySelectorAll('.swatch')].map((swatch) => swatch.style.background)"
        )
        laptop.open("about:blank")
        laptop.open(remembered)
        laptop.wait_until("document.getElementById('card-loss')?.dataset.rows === '2'")
        assert laptop.evaluate("document.querySelector('#against input:checked').value") == "step"
        assert (
            laptop.evaluate(
                "[...document.querySelectorAll('.swatch')].map((swatch) => swatch.style.background)"
            )
            == colours
        )
        assert len(set(colours)) == 2
        assert laptop.errors == []


def test_a_lost_server_is_said_and_found_again(tmp_path: Path, laptop: Browser) -> None:
    run = append(tmp_path / "run", step(0))
    connection = "document.getElementById('connection').textContent"
    with watch(run) as (address, process):
        laptop.open(address)
        laptop.wait_until(f"{connection} === 'live'")
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=HANG_S)
        assert (process.returncode, said) == (0, "")
    laptop.wait_until(f"{connection} === 'connection lost'")
    append(run, step(1))
    with watch(run, "--port", address.rsplit(":", 1)[1].rstrip("/")):
        laptop.wait_until(f"{connection} === 'live'")
        laptop.wait_until(f"{number('run', 'step')} === '2'")


def test_words_of_a_run_are_never_markup(tmp_path: Path, laptop: Browser) -> None:
    trap = "<img src=x onerror=\"document.title='caught'\">"
    run = append(tmp_path / "<b>run", step(0), event("warning", text=trap), event("failed", error=trap))
    with watch(run) as (address, _):
        laptop.open(address)
        laptop.wait_until(LAID)
        laptop.wait_until("document.querySelectorAll('#messages li').length === 2")
        assert laptop.evaluate("document.querySelectorAll('main img, main b b').length") == 0
        assert laptop.evaluate("document.title") == "sbpipe watch"
        assert {url.split("/")[2] for url in laptop.requests if url.startswith("http")} == {
            address.split("/")[2]
        }
        assert laptop.errors == []


def test_a_wrong_path_ends_with_a_plain_word(tmp_path: Path) -> None:
    done = sbpipe("watch", str(tmp_path / "nowhere"))
    assert (done.returncode, "does not exist" in done.stderr) == (2, True)
    assert "Traceback" not in done.stderr
