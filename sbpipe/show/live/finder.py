"""Finds the runs under the paths that the user named, again at every call. Opens no events."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbpipe.errors import RunDirError
from sbpipe.runs import read_study
from sbpipe.runs.json_file import read_note
from sbpipe.runs.names.files import CONFIG, TRAINER_EVENTS
from sbpipe.runs.study import CELLS, PLAN

DEPTH = 3
MAX_RUNS = 200
"""The most runs followed at once; if there are more, the newest."""


@dataclass(frozen=True)
class Found:
    """Everything found under the paths."""

    runs: dict[str, Path] = field(default_factory=dict)
    """By their unique names on the page, oldest first."""
    studies: list[dict[str, Any]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """Cells whose process failed, by name, with the reason; their own events may end without one."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def is_run(path: Path) -> bool:
    """Whether a directory holds a run, perhaps only begun or half-written."""
    return (path / CONFIG).exists() or (path / TRAINER_EVENTS).exists()


def check(paths: Sequence[Path]) -> None:
    """Refuse paths that cannot hold a run."""
    for path in paths:
        if not path.exists():
            raise RunDirError(
                f"{path} does not exist. Name a run directory, or a folder of runs such as runs/"
            )
        if not path.is_dir():
            raise RunDirError(f"{path} is a file. Name the run directory that holds it: {path.parent}")


def find(paths: Sequence[Path]) -> Found:
    """Every run under the paths. A path without runs stands for a run that has not begun."""
    found = Found()
    entries: list[tuple[Path, Path]] = []
    for root in paths:
        if not root.is_dir():
            found.problems.append(f"{root} is gone: it was moved or removed")
            continue
        # In a folder without runs one may be about to begin.
        places = list(_walk(root, DEPTH)) or [root]
        studies = [place for place in places if (place / PLAN).exists()]
        for study in studies:
            _add_study(found, study)
            entries += [(root, cell) for cell in _folders(study / CELLS)]
        entries += [(root, run) for run in places if run not in studies]
    # Sorted before the cut, so that the newest stay, whichever path they are under.
    entries.sort(key=lambda entry: _age(entry[1]))
    if len(entries) > MAX_RUNS:
        found.notes.append(
            f"{len(entries) - MAX_RUNS} older runs are left out: {MAX_RUNS} are followed at once"
        )
    found.runs.update(_named(entries[-MAX_RUNS:]))
    for name, run in found.runs.items():
        status = read_note(run)
        if status.get("status") == "failed":
            found.failures[name] = str(status.get("error") or "its process failed")
    return found


def _walk(path: Path, depth: int) -> Iterator[Path]:
    """Runs and studies at or below a folder; it does not search inside of them."""
    if (path / PLAN).exists() or is_run(path):
        yield path
    elif depth:
        for folder in _folders(path):
            yield from _walk(folder, depth - 1)


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []  # removed, or made private, between two looks


def _age(run: Path) -> float:
    """About when a run began: its settings are written once, at the start."""
    for place in (run / CONFIG, run):
        try:
            return place.stat().st_mtime
        except OSError:
            continue
    return 0.0


def _named(entries: Sequence[tuple[Path, Path]]) -> dict[str, Path]:
    """Short names where they are unique, longer ones elsewhere."""
    named: dict[str, Path] = {}
    for root, run in entries:
        inside = [part for part in run.relative_to(root).parts if part != CELLS]
        home = root.resolve().name or "/"
        short = "/".join(inside) or home
        name = next(
            name for name in (short, f"{home}/{short}", str(run.resolve())) if named.get(name, run) == run
        )
        named[name] = run
    return named


def _add_study(found: Found, path: Path) -> None:
    try:
        study = read_study(path)
    except RunDirError as error:
        found.notes.append(str(error))
        return
    told = {cell.name: read_note(cell.path) for cell in study.cells}
    counts = {
        word: sum(status.get("status") == word for status in told.values())
        for word in ("finished", "failed", "running")
    }
    failures = [
        {"cell": name, "error": str(s.get("error"))}
        for name, s in told.items()
        if s.get("status") == "failed"
    ]
    progress = {
        "name": path.resolve().name,
        "kind": study.kind,
        "total": len(study.cells),
        **counts,
        "failures": failures,
    }
    found.studies.append(progress | {"waiting": len(study.cells) - sum(counts.values())})
