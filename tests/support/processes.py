"""Finding the processes of a run, and where its trainer listens."""

import json
import os
from pathlib import Path

from support.runs import wait_for


def children_of(path: Path) -> list[int]:
    """Processes that have the run directory on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if str(path).encode() in words and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def pid_of(path: Path, role: str) -> int:
    def look() -> int:
        for pid in children_of(path):
            words = (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")
            if role.encode() in words and b"run" not in words:
                return pid
        return 0

    return int(wait_for(f"a {role}", look))


def control_of(run_path: Path) -> str:
    """Where a trainer listens, once it does."""
    path = run_path / "connection.json"
    return str(json.loads(path.read_text())["control"]) if path.exists() else ""
