"""The live page over HTTP: the only file that knows the web server. No request names a file.

GET /               the page                     GET /api/state    runs, and the curves of ?show=NAME
GET /events         changes, as they happen      GET /api/charts   how to draw them
GET /metrics        for Prometheus               GET /healthz      200, or 503 with reasons
"""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from sbpipe.show.charts import javascript, theme
from sbpipe.show.live import specs
from sbpipe.show.live.prometheus import CONTENT_TYPE, metrics_text
from sbpipe.show.live.status import complaints
from sbpipe.show.live.watcher import Sent, Watcher

TELL_EVERY_S = 0.25
PING_EVERY_S = 3.0
PAGE_FILES = {
    "index.html": "text/html",
    "style.css": "text/css",
    "main.js": "text/javascript",
    "charts.js": "text/javascript",
    "lists.js": "text/javascript",
    "address.js": "text/javascript",
}
"""All files of the page. Requests choose among these names, so a path from a request is never opened."""
HEADERS = {
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
        "img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


def build_app(
    watcher: Watcher, trusted_hosts: list[str], is_over: Callable[[], bool] = lambda: False
) -> Starlette:
    """The page of one watcher. `is_over` ends the streams, because a stopping server waits for them."""
    server = _Routes(watcher, is_over)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watcher.start()
        # Making the library takes a second or two: begin before a page asks for it.
        threading.Thread(target=server.script, name="vega", daemon=True).start()
        try:
            yield
        finally:
            watcher.stop()

    routes = [
        *(Route("/" if name == "index.html" else f"/{name}", server.page_file(name)) for name in PAGE_FILES),
        Route("/vega.js", server.vega),
        Route("/events", server.events),
        Route("/api/state", server.state),
        Route("/api/charts", server.charts),
        Route("/metrics", server.metrics),
        Route("/healthz", server.healthz),
    ]
    guard = Middleware(TrustedHostMiddleware, allowed_hosts=trusted_hosts, www_redirect=False)
    return Starlette(routes=routes, middleware=[guard], lifespan=lifespan)


def serve(watcher: Watcher, listener: socket.socket, trusted_hosts: list[str]) -> None:
    """Serve on a bound socket until a signal ends it."""
    # `server` is assigned below, before the app calls this.
    app = build_app(watcher, trusted_hosts, lambda: server.should_exit)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=2)
    )
    server.run(sockets=[listener])


class _Routes:
    def __init__(self, watcher: Watcher, is_over: Callable[[], bool]) -> None:
        self._watcher = watcher
        self._is_over = is_over
        self._script = ""
        self._script_lock = threading.Lock()

    def page_file(self, name: str) -> Callable[[Request], Response]:
        """A handler that answers with one file of the page."""
        content = resources.files("sbpipe.show.live").joinpath("web", name).read_bytes()

        def answer(_: Request) -> Response:
            return Response(content, media_type=PAGE_FILES[name], headers=HEADERS)

        return answer

    def script(self) -> str:
        """The drawing library, made once; other callers wait for it meanwhile."""
        with self._script_lock:
            self._script = self._script or javascript()
            return self._script

    def vega(self, _: Request) -> Response:
        """The drawing library."""
        return Response(
            self.script(), media_type="text/javascript", headers={"Cache-Control": "max-age=3600"}
        )

    async def events(self, request: Request) -> Response:
        """A stream of changes; the first message is everything."""
        stream = self._changes(request.query_params.getlist("show")[: specs.MAX_SHOWN])
        return StreamingResponse(
            stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    async def _changes(self, shown: list[str]) -> AsyncIterator[str]:
        sent, last_s = Sent(), 0.0
        # A browser reconnects after so many milliseconds, also after a restart of the server.
        yield "retry: 1000\n\n"
        while not self._is_over():
            change = self._watcher.news(shown, sent)
            # After a long silence a page would take the connection for lost.
            if change or time.monotonic() - last_s > PING_EVERY_S:
                last_s = time.monotonic()
                yield f"data: {json.dumps(change, separators=(',', ':'), allow_nan=False)}\n\n"
            # More often than runs are read, to add little to that delay.
            await asyncio.sleep(TELL_EVERY_S)

    def state(self, request: Request) -> Response:
        """The whole state, for a new page."""
        return _answer(self._watcher.news(request.query_params.getlist("show")[: specs.MAX_SHOWN], Sent()))

    def charts(self, request: Request) -> Response:
        """Specifications and theme for the runs shown: ?show=NAME&colour=0 (pairs), x, shade, narrow."""
        given = request.query_params
        names = given.getlist("show")[: specs.MAX_SHOWN]
        colours = [_colour(text) for text in given.getlist("colour")]
        x, shade = given.get("x", "time"), given.get("shade", "light")
        if x not in specs.AXES or shade not in theme.INK or len(colours) != len(given.getlist("show")):
            return _answer({"error": "x, shade or the number of colours is wrong"}, status_code=400)
        is_narrow = given.get("narrow") == "1"
        return _answer(
            {
                "curves": specs.pictures(names, colours[: len(names)], x=x, is_narrow=is_narrow),
                "timeline": {**specs.TIMELINE, "spec": specs.timeline_spec(shade, is_narrow=is_narrow)},
                "config": specs.config(shade),
                "palette": theme.CATEGORY,
                "data": specs.DATA,
            }
        )

    def metrics(self, _: Request) -> Response:
        """Gauges for Prometheus."""
        return Response(
            metrics_text(self._watcher.overview()["heads"], self._watcher.now()),
            headers={"Content-Type": CONTENT_TYPE},
        )

    def healthz(self, _: Request) -> Response:
        """Whether all followed runs are well."""
        overview = self._watcher.overview()
        reasons = complaints(overview["heads"], overview["problems"], self._watcher.now())
        return _answer(
            {"status": "failing", "reasons": reasons} if reasons else {"status": "ok"},
            503 if reasons else 200,
        )


def _answer(content: Any, status_code: int = 200) -> Response:
    return JSONResponse(content, status_code=status_code, headers={"Cache-Control": "no-store"})


def _colour(text: str) -> str:
    return theme.CATEGORY[int(text) % len(theme.CATEGORY)] if text.isdecimal() else theme.CATEGORY[0]
