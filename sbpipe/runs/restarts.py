"""Restarts of a run's roles, as its supervisor recorded them. It must not know how they are restarted."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from sbpipe.runs.names.files import SUPERVISOR_EVENTS


def count_restarts(run: Path) -> dict[str, int]:
    """How often each role of a run was restarted, as numbers of its summary."""
    try:
        lines = (run / SUPERVISOR_EVENTS).read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []  # nothing was ever restarted, or there is no supervisor
    counts = Counter(
        str(_parsed(line).get("child", "")).partition(" ")[0] for line in lines if '"restarted"' in line
    )
    return {"restarts.trainer": counts["trainer"], "restarts.selector": counts["selector"]}


def _parsed(line: str) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except ValueError:
        return {}  # cut short by a full disk
