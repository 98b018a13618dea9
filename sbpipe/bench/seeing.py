"""How soon a report of 100,000 events is built and opens, how soon the live page hears of a step, and what
watching costs a run.

The events are those of one real run, told over and over with later clocks. Opening is measured by a real
Chromium if there is one: the page itself says when its first chart stands.
"""

import json
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sbpipe.bench.rows import Row
from sbpipe.runs.directory import SUMMARY, TRAINER_EVENTS

NUM_EVENTS = 100_000
PAIRS = 4
"""Runs watched and not, in turn."""
AGAIN = ("step", "progress", "selection", "eval", "scores")
"""Kinds that are told over and over."""
HEARD = 8
"""Steps whose way to the live page is timed."""
DEADLINE_S = 60.0
REPORTS_BACK = """<script>const look = () => document.querySelector(".chart.drawn")
  ? fetch("/drawn?" + performance.now()) : setTimeout(look, 10); look();</script>"""


def measure() -> list[Row]:
    """The rows of this bench."""
    with tempfile.TemporaryDirectory() as folder:
        watched, alone = [], []
        for k in range(PAIRS):
            alone.append(_run(Path(folder) / f"alone-{k}"))
            with _watching(Path(folder) / f"watched-{k}", is_followed=True):
                watched.append(_run(Path(folder) / f"watched-{k}"))
        ratios = [one / other for one, other in zip(watched, alone, strict=True)]
        long = Path(folder) / "long"
        count = lengthen(Path(folder) / "alone-0", long)
        begin = time.perf_counter()
        _sbpipe("report", str(long))
        built_s = time.perf_counter() - begin
        what = f"{count:,} events"
        return [
            Row("seeing", f"sbpipe report of {what}, with PNG and SVG", built_s, "s", at_most=20.0),
            *_opened(long / "report.html", f"that page, opened until its first chart stands ({_size(long)})"),
            *_heard(Path(folder) / "watched-0"),
            Row(
                "seeing",
                f"step time, watched against not, mean of {PAIRS} pairs",
                statistics.mean(ratios),
                "×",
            ),
            Row("seeing", "the same, standard deviation", statistics.stdev(ratios), "×"),
        ]


def _sbpipe(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "sbpipe", *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _run(path: Path) -> float:
    """A run of a hundred steps; its milliseconds per step."""
    settings = [part for setting in ("train.steps=100", "eval.every=0.5") for part in ("--set", setting)]
    _sbpipe("run", "--no-report", "--run-dir", str(path), *settings)
    return float(json.loads((path / SUMMARY).read_text())["trainer.step_ms"])


# --- a long run -----------------------------------------------------------------------------------


def lengthen(short: Path, long: Path) -> int:
    """Copy a run and tell its steps over and over until there are NUM_EVENTS; how many there are then."""
    shutil.copytree(short, long)
    files = sorted(long.glob("events-*.jsonl"))
    told = {file: [json.loads(line) for line in file.read_text().splitlines()] for file in files}
    times = -(-NUM_EVENTS // sum(event["kind"] in AGAIN for events in told.values() for event in events))
    count = 0
    for file, events in told.items():
        with file.open("w") as out:
            for event in _over_and_over(events, times):
                out.write(json.dumps(event) + "\n")
                count += 1
    return count


def _over_and_over(events: list[dict[str, Any]], times: int) -> Iterator[dict[str, Any]]:
    yield from events
    length_s = events[-1]["clock"] - events[0]["clock"] + 1.0
    steps = 1 + max((event["step"] for event in events if event["kind"] == "step"), default=0)
    candidates = max((event["candidates"] for event in events if event["kind"] == "step"), default=0)
    for k in range(1, times):
        for event in events:
            if event["kind"] in AGAIN:
                yield _later(event, k * length_s, k * steps, k * candidates)


def _later(event: dict[str, Any], seconds: float, steps: int, candidates: int) -> dict[str, Any]:
    later = {**event, "t": event["t"] + seconds, "clock": event["clock"] + seconds}
    if event["kind"] != "selection":
        later |= {"step": event["step"] + steps, "candidates": event["candidates"] + candidates}
    if "elapsed_s" in event:
        later["elapsed_s"] = event["elapsed_s"] + seconds
    if "spans" in event:
        later["spans"] = {
            name: [number + seconds if k % 2 == 0 else number for k, number in enumerate(numbers)]
            for name, numbers in event["spans"].items()
        }
    return later


def _size(folder: Path) -> str:
    return f"{(folder / 'report.html').stat().st_size / 1e6:.1f} MB"


# --- pages ----------------------------------------------------------------------------------------


def _opened(page: Path, what: str) -> list[Row]:
    """Seconds until the page's first chart stands, as its own script tells; no row without a browser."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.stderr.write("no Chromium here: opening a page is not measured\n")
        return []
    # The page forbids itself every connection; here it may tell us when it is done.
    allowed = page.read_bytes().replace(b"default-src 'none';", b"default-src 'none'; connect-src 'self';", 1)
    server = _PageServer(allowed + REPORTS_BACK.encode())
    switches = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--window-size=1200,2400",
    )
    with tempfile.TemporaryDirectory() as profile:
        command = [
            chromium,
            *switches,
            f"--user-data-dir={profile}",
            "--remote-debugging-port=0",
            server.address,
        ]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return [Row("seeing", what, server.wait_for_word() / 1e3, "s", at_most=2.0)]
        finally:
            browser.terminate()
            browser.wait(DEADLINE_S)
            server.shutdown()
            server.server_close()


class _PageServer(ThreadingHTTPServer):
    """Serves one page and hears from it; in threads, because browsers open connections ahead and say nothing
    on them.
    """

    def __init__(self, page: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _PageHandler)
        self.page = page
        self.told: queue.Queue[float] = queue.Queue()
        threading.Thread(target=self.serve_forever, name="page", daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def wait_for_word(self) -> float:
        try:
            return self.told.get(timeout=DEADLINE_S)
        except queue.Empty:
            raise TimeoutError(f"the page drew no chart within {DEADLINE_S:.0f} s") from None


class _PageHandler(BaseHTTPRequestHandler):
    server: _PageServer

    def do_GET(self) -> None:
        if self.path.startswith("/drawn?"):
            self.server.told.put(float(self.path.partition("?")[2]))
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        if self.path == "/":
            self.wfile.write(self.server.page)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def _watching(path: Path, *, is_followed: bool = False) -> Iterator[str]:
    """A live page on a run, with somebody who follows it or not; its address."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "sbpipe", "watch", str(path)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    follower = None
    try:
        address = _address_in(server.stdout)
        if is_followed:
            follower = subprocess.Popen(
                [sys.executable, "-c", _FOLLOW, f"{address}/events?show={path.name}"],
                stdout=subprocess.DEVNULL,
            )
        yield address
    finally:
        for process in (follower, server):
            if process is not None:
                process.terminate()
                process.wait(DEADLINE_S)
        server.stdout.close()


def _address_in(said: Iterable[str]) -> str:
    """The address that a server names; it ends its output when it dies."""
    for line in said:
        for word in line.split():
            if word.startswith("http://"):
                return word.rstrip("/")
    raise RuntimeError("sbpipe watch ended without naming its address")


_FOLLOW = "import sys, urllib.request\nfor line in urllib.request.urlopen(sys.argv[1]): pass\n"


def _heard(path: Path) -> list[Row]:
    """Seconds from a step's event in the file to its news on the page's stream."""
    took = []
    with (
        _watching(path) as address,
        urllib.request.urlopen(f"{address}/events?show={path.name}", timeout=DEADLINE_S) as stream,
    ):
        for k in range(HEARD):
            step = 1_000_000 + k
            begin = time.perf_counter()
            stamp = {
                "t": time.time(),
                "clock": begin,
                "role": "trainer",
                "kind": "progress",
                "step": step,
                "share": 0.5,
            }
            with (path / TRAINER_EVENTS).open("a") as events:
                events.write(json.dumps(stamp) + "\n")
            while str(step).encode() not in stream.readline():
                pass
            took.append(time.perf_counter() - begin)
            time.sleep(0.37)  # not in step with the server's clock
    return [
        Row("seeing", "from a step to the live page, median", statistics.median(took), "s", at_most=2.0),
        Row("seeing", "from a step to the live page, slowest", max(took), "s", at_most=2.0),
    ]
