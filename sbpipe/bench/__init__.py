"""`sbpipe bench`: what the README claims, measured side by side on this machine. A timing is a ratio or a
rate, never a test's assertion.

Each file measures one thing and returns rows; this one runs them and prints the table. Nothing else imports
this room.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sbpipe.bench.rows import Row, table
from sbpipe.errors import ConfigError


def _selection() -> list[Row]:
    from sbpipe.bench.selection import measure

    return measure()


def _views() -> list[Row]:
    from sbpipe.bench.views import measure

    return measure()


def _link() -> list[Row]:
    from sbpipe.bench.link import measure

    return measure()


def _publish() -> list[Row]:
    from sbpipe.bench.publish import measure

    return measure()


def _memory() -> list[Row]:
    from sbpipe.bench.memory import measure

    return measure()


def _pipeline() -> list[Row]:
    from sbpipe.bench.pipeline import measure

    return measure()


def _startup() -> list[Row]:
    from sbpipe.bench.startup import measure

    return measure()


def _seeing() -> list[Row]:
    from sbpipe.bench.seeing import measure

    return measure()


def _scoring() -> list[Row]:
    from sbpipe.bench.scoring import bars, measure

    return bars(measure())


def _forward() -> list[Row]:
    from sbpipe.bench.forward import measure

    return measure()


BENCHES: dict[str, Callable[[], list[Row]]] = {
    "selection": _selection,
    "views": _views,
    "link": _link,
    "publish": _publish,
    "scoring": _scoring,
    "forward": _forward,
    "startup": _startup,
    "memory": _memory,
    "pipeline": _pipeline,
    "seeing": _seeing,
}


def main(what: list[str], *, as_json: bool) -> int:
    """Run the named benches, or all; 0 if every bar is met, 1 if one is missed."""
    for name in what:
        if name not in BENCHES:
            raise ConfigError("bench", name, "unknown", f"It is one of {', '.join(BENCHES)}")
    rows: list[Row] = []
    for name in what or BENCHES:
        sys.stderr.write(f"measuring {name} ...\n")
        rows += BENCHES[name]()
    text = json.dumps([row.to_dict() for row in rows], indent=2) if as_json else table(rows)
    sys.stdout.write(text + "\n")
    return _exit_code(rows)


def scoring_bench(given: Mapping[str, Any], run: Path | None, *, as_json: bool, compiled: bool) -> int:
    """The table of precisions and batch sizes of one model, or of the two that bars are of, and below it the
    bars.
    """
    from sbpipe.bench.scoring import bars, measure, to_dicts
    from sbpipe.bench.scoring import table as scoring_table

    found = measure(given, run, compiled=compiled)
    rows = bars(found)
    text = json.dumps(to_dicts(found), indent=2) if as_json else f"{scoring_table(found)}\n\n{table(rows)}"
    sys.stdout.write(text + "\n")
    return _exit_code(rows)


def _exit_code(rows: list[Row]) -> int:
    return 0 if all(row.is_met is not False for row in rows) else 1
