"""A real headless Chromium for tests, driven over the DevTools protocol: what a page drew, said and asked
for.
"""

import base64
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest
import websocket

from support.runs import HANG_S, wait_for

CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)


class Browser:
    """One page of one Chromium, which ends with it.

    `errors` holds what the console called an error and every exception nobody caught, `warnings` what it
    warned of, `requests` the address of everything the page asked for; all three since the last `open`.
    """

    def __init__(self, *, deadline_s: float = HANG_S) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.requests: list[str] = []
        self._deadline_s = deadline_s
        self._num_sent = 0
        self._is_loaded = False
        self._folder = tempfile.mkdtemp(prefix="sbpipe-browser-")
        self._process = subprocess.Popen(
            [str(CHROMIUM), *SWITCHES, f"--user-data-dir={self._folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._socket = websocket.create_connection(self._page_address(), timeout=deadline_s)
        except BaseException:
            self._end_process()
            raise
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, url: str) -> float:
        """Go to an address and wait for its load event; the seconds that took."""
        self.errors.clear()
        self.warnings.clear()
        self.requests.clear()
        self._is_loaded = False
        begin = time.monotonic()
        answer = self.command("Page.navigate", url=url)
        assert "errorText" not in answer, f"{url}: {answer['errorText']}"
        while not self._is_loaded:
            self._take(self._receive())
        return time.monotonic() - begin

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for, an exception raised here."""
        answer = self.command("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, f"{script}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait_until(self, script: str, deadline_s: float = HANG_S) -> Any:
        """Wait until an expression in the page is true; what it then is."""
        return wait_for(script, lambda: self.evaluate(script), deadline_s)

    def screenshot(self, path: Path, *, whole_page: bool = False) -> None:
        """Write what is seen, or the whole page, as PNG."""
        answer = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole_page)
        path.write_bytes(base64.b64decode(answer["data"]))

    def set_viewport(self, width: int, height: int) -> None:
        """The size of the window, in CSS pixels; narrow ones count as a phone."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def dark(self, is_dark: bool) -> None:
        """Whether the reader prefers dark pages."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Any command of the DevTools protocol, answered; events on the way are taken in."""
        self._num_sent += 1
        number = self._num_sent
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = self._receive()
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                return dict(message["result"])
            self._take(message)

    def close(self) -> None:
        """End the browser."""
        self._socket.close()
        self._end_process()

    def _receive(self) -> dict[str, Any]:
        return dict(json.loads(self._socket.recv()))  # raises when nothing comes within the deadline

    def _take(self, message: dict[str, Any]) -> None:
        """Note what an event says."""
        parameters = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._is_loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "assert", "warning"):
                said = " ".join(
                    str(part.get("value", part.get("description"))) for part in parameters["args"]
                )
                (self.warnings if parameters["type"] == "warning" else self.errors).append(said)
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.errors.append(
                    f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}".strip()
                )

    def _page_address(self) -> str:
        """Where the one open page listens; Chromium writes its port down once it has one."""
        port_file = Path(self._folder) / "DevToolsActivePort"
        port = wait_for(
            "Chromium's start",
            lambda: port_file.read_text().split()[:1] if port_file.exists() else None,
            self._deadline_s,
        )[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=self._deadline_s) as answer:
            targets = json.loads(answer.read())
        return str(next(target["webSocketDebuggerUrl"] for target in targets if target["type"] == "page"))

    def _end_process(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10.0)
        shutil.rmtree(self._folder, ignore_errors=True)


if (
    __name__ == "__main__"
):  # python -m tests.browser URL FILE.png: the picture of a page that draws its charts
    with Browser() as shown:
        shown.set_viewport(1200, 1400)
        shown.open(sys.argv[1])
        shown.wait_until("document.querySelectorAll('canvas').length > 4")
        shown.screenshot(Path(sys.argv[2]))
