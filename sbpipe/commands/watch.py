"""`sbpipe watch`: the live page."""

import argparse
import contextlib
from importlib.util import find_spec
from pathlib import Path

from sbpipe.errors import ConfigError, MissingExtra

HELP = "a live page of running and finished runs"
DESCRIPTION = """\
Serves a page on this machine that follows runs as they train: curves, the last
steps of both roles, selectors and warnings. It only reads the runs' files.

  sbpipe watch runs/                      every run in a folder, new ones too
  sbpipe watch runs/a runs/b              two runs, one over the other

Beside the page: /metrics for Prometheus, /healthz for a supervisor (503 when a
run is stalled or failed).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="a run directory, a folder of runs, a sweep or a comparison",
    )
    parser.add_argument(
        "--port", type=int, metavar="N", help="where to listen (the first free one from 8770 on)"
    )
    parser.add_argument(
        "--host",
        metavar="NAME",
        help="address to listen on (127.0.0.1); on others anyone may read: there is no password",
    )
    parser.add_argument(
        "--stalled-after",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds without an event that make a run stalled (30)",
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    from sbpipe.show.live import finder, listener
    from sbpipe.show.live.watcher import Watcher

    _need_libraries()
    if not args.stalled_after > 0:
        raise ConfigError("--stalled-after", args.stalled_after, "must be more than 0", "30 is a good value")
    finder.check(args.paths)
    host = args.host or listener.HOST
    # Bound before the server is imported, so that the address, or a taken port, is known at once.
    bound = listener.listen(host, args.port)
    url = listener.url(host, bound.getsockname()[1])
    if not listener.is_loopback(host):
        print(f"warning: anyone who can reach {url} can read these runs: there is no password", flush=True)
    print(f"watching {', '.join(map(str, args.paths))}\n{url}   (Ctrl-C ends it)", flush=True)
    from sbpipe.show.live.server import serve

    if args.open:
        import threading
        import webbrowser

        # In a thread: `open` may return only when the browser is closed, and the page must be served.
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        serve(Watcher(args.paths, stalled_after_s=args.stalled_after), bound, listener.trusted_hosts(host))
    return 0


def _need_libraries() -> None:
    for module, library in (
        ("starlette", "starlette"),
        ("uvicorn", "uvicorn"),
        ("vl_convert", "vl-convert-python"),
    ):
        if find_spec(module) is None:
            raise MissingExtra(library, "watch", "live pages")
