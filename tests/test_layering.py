"""What may import what: a folder is a stage of the flow, and lower never imports higher."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "sbpipe"

# From the ground up: a room may import itself and what stands before it.
LAYERS = [
    ["archives", "collector", "errors", "files", "interrupts", "records", "randomness", "text", "version"],
    ["config"],
    ["runs", "machine"],
    ["models", "data", "selection", "link", "weights", "scoring", "show"],
    ["selector", "trainer"],
    ["process", "doctor", "export"],
    ["ownloop"],
    ["bench"],
    ["studies", "hf", "lightning"],
    ["commands", "api"],
    ["cli"],
]
FORBIDDEN = {
    "selection": {"link", "models", "data", "weights", "scoring", "show"},
    "link": {"models", "data", "weights", "scoring", "selection", "show"},
    "weights": {"link", "data", "scoring", "selection", "models", "show"},
    "scoring": {"link", "data", "weights", "show"},
    "data": {"link", "models", "weights", "scoring", "selection", "show"},
    "models": {"link", "data", "weights", "scoring", "selection", "show"},
    "show": {"link", "data", "weights", "scoring", "selection", "models"},
    "export": {"selector", "scoring", "show", "link", "selection"},
    "trainer": {"selector", "scoring", "show"},
    "selector": {"trainer", "show"},
}
OWNERS = {
    "zmq": {"link/sockets.py", "link/trainer_port.py", "link/selector_port.py"},
    "msgpack": {"link/frames.py"},
    "vl_convert": {"show/charts/render.py"},
    "starlette": {"show/live/server.py"},
    "uvicorn": {"show/live/server.py"},
    "transformers": {"hf.py"},
    "pytorch_lightning": {"lightning.py"},
}
TORCH_FREE = (
    "api",
    "cli",
    "commands",
    "config",
    "errors",
    "files",
    "link",
    "machine/cores.py",
    "machine/place.py",
    "process/__init__.py",
    "process/bulletin.py",
    "process/child.py",
    "process/crew.py",
    "process/patience.py",
    "process/restarts.py",
    "process/selector_care.py",
    "process/showing.py",
    "process/standing.py",
    "process/supervisor.py",
    "process/trainer_care.py",
    "records",
    "runs",
    "selection",
    "show",
    "studies/cells.py",
    "studies/comparison_plan.py",
    "studies/conductor.py",
    "studies/outcome.py",
    "studies/plan.py",
    "studies/sweep_plan.py",
    "studies/worth_plan.py",
)


@cache
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
    """The top-level room of a file; the doctor looks at the whole product, so it stands above the machine."""
    parts = path.relative_to(ROOT).parts
    return "doctor" if parts[:2] == ("machine", "doctor") else parts[0].removesuffix(".py")


FILES = [path for path in sorted(ROOT.rglob("*.py")) if room_of(path) not in ("__init__", "__main__")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lower_never_imports_higher(path: Path) -> None:
    room = room_of(path)
    height = next(k for k, layer in enumerate(LAYERS) if room in layer)
    rooms = {name.split(".")[1] for name in imports_of(path) if name.startswith("sbpipe.")} - {room}
    above = {other for layer in LAYERS[height + 1 :] for other in layer}
    assert rooms & above == set()
    assert rooms & FORBIDDEN.get(room, set()) == set()


@pytest.mark.parametrize("library", OWNERS)
def test_a_library_has_one_owner_file(library: str) -> None:
    users = {
        str(path.relative_to(ROOT))
        for path in FILES
        if any(name.split(".")[0] == library for name in imports_of(path))
    }
    assert users == OWNERS[library]


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if str(path.relative_to(ROOT)).startswith(TORCH_FREE)],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_these_rooms_do_not_know_torch(path: Path) -> None:
    assert not any(name.split(".")[0] == "torch" for name in imports_of(path))
