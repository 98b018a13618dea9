"""What may import what: a folder is a stage of the flow, and lower never imports higher."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "sbpipe"

# From the ground up: a room may import itself and what stands before it.
LAYERS = [
    [
        "errors",
        "records",
        "config",
        "randomness",
        "metrics",
        "cores",
        "devices",
        "plugins",
        "run_dir",
        "scorefile",
        "layout",
        "version",
        "swing",
        "fidelity",
    ],
    ["losses", "models", "data", "selection", "link", "weights", "scoring", "progress", "logbook", "charts"],
    ["selector", "trainer"],
    ["parallel"],
    ["roles", "launch", "rating", "doctor", "bench", "report", "live", "trackers"],
    ["study"],
    ["compare"],
    ["reproduce"],
    ["commands", "api"],
    ["cli"],
]
FORBIDDEN = {
    "selection": {"link", "models", "data", "weights", "scoring"},
    "link": {"models", "data", "weights", "scoring", "selection"},
    "weights": {"link", "data", "scoring", "selection", "models"},
    "scoring": {"link", "data", "selection", "weights"},
    "data": {"link", "models", "weights", "scoring", "selection"},
    "models": {"link", "data", "weights", "scoring", "selection"},
    "trainer": {"selector", "scoring"},
    "selector": {"trainer"},
    "logbook": {"charts", "progress"},
    "charts": {"logbook", "progress"},
    "live": {"report", "trackers", "roles", "launch"},
    "report": {"live", "trackers", "roles", "launch"},
    "trackers": {"report", "live", "roles", "launch"},
}
OWNERS = {
    "zmq": {"link/sockets.py"},
    "msgpack": {"link/frames.py"},
    "vl_convert": {"charts/render.py"},
    "starlette": {"live/server.py"},
    "uvicorn": {"live/server.py"},
}
TORCH_FREE = (
    "cli",
    "commands",
    "config",
    "errors",
    "records",
    "metrics",
    "swing",
    "fidelity",
    "cores",
    "run_dir",
    "scorefile",
    "progress",
    "launch",
    "api",
    "link",
    "selection",
    "logbook",
    "charts",
    "report",
    "live",
    "trackers",
    "study",
    "compare",
)


def imports_of(path: Path) -> set[str]:
    """Dotted names a file imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "sbpipe"}
    return names


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


FILES = [path for path in sorted(ROOT.rglob("*.py")) if room_of(path) not in ("__init__", "__main__")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lower_never_imports_higher(path: Path) -> None:
    room = room_of(path)
    height = next(k for k, layer in enumerate(LAYERS) if room in layer)
    rooms = {name.split(".")[1] for name in imports_of(path) if name.startswith("sbpipe.")} - {"__version__", room}
    above = {other for layer in LAYERS[height + 1 :] for other in layer}
    assert rooms & above == set()
    assert rooms & FORBIDDEN.get(room, set()) == set()


@pytest.mark.parametrize("library", OWNERS)
def test_a_library_has_one_owner_file(library: str) -> None:
    users = {str(path.relative_to(ROOT)) for path in FILES if any(name.split(".")[0] == library for name in imports_of(path))}
    assert users - {"doctor/host.py", "doctor/survey.py", "doctor/rehearsal.py"} == OWNERS[library]


@pytest.mark.parametrize(
    "path", [path for path in FILES if room_of(path) in TORCH_FREE], ids=lambda path: str(path.relative_to(ROOT))
)
def test_these_rooms_do_not_know_torch(path: Path) -> None:
    assert not any(name.split(".")[0] == "torch" for name in imports_of(path))
