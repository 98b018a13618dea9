"""The pages: what they link to, name and promise exists."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sbpipe.commands import COMMANDS
from sbpipe.config import known_keys
from sbpipe.link.schema import SHAPES

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docker/README.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "sbpipe").rglob("README.md"),
        *(ROOT / "deploy").rglob("README.md"),
    ]
)
INDEX = ROOT / "docs" / "README.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"`((?:sbpipe|tests|configs|docker|deploy|docs|examples)/[\w./-]*)`")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def links_of(page: Path) -> list[str]:
    """Link targets outside of code, without those that leave the repository."""
    targets = LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return [target for target in targets if "://" not in target]


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@each_page
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target in links_of(page):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{target} leads nowhere"
        assert not anchor or anchor in anchors_of(file), f"{target}: no such heading"


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "CHANGELOG.md"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_path_that_is_named_exists(page: Path) -> None:
    named = [path for path in PATH.findall(page.read_text(encoding="utf-8")) if "NAME" not in path]
    missing = [path for path in named if not (ROOT / path).exists()]
    assert missing == []


@pytest.mark.parametrize(
    "page", sorted((ROOT / "sbpipe").rglob("README.md")), ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_file_that_the_page_of_a_room_names_exists(page: Path) -> None:
    named = set(re.findall(r"[a-z_]+\.py\b", page.read_text(encoding="utf-8")))
    assert named - {file.name for file in (ROOT / "sbpipe").rglob("*.py")} == set()


def test_the_page_of_the_protocol_names_every_field_of_every_message() -> None:
    page = (ROOT / "sbpipe" / "link" / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\d+) \| (\w+.*) \|$", page, re.MULTILINE))
    assert set(rows) == {str(code) for code in SHAPES}
    for code, shape in SHAPES.items():
        words = set(re.findall(r"\w+", rows[str(code)]))
        assert {shape.kind.__name__, *shape.names} <= words, shape.kind.__name__


@each_page
def test_every_command_and_setting_that_is_named_exists(page: Path) -> None:
    code = "\n".join(re.findall(r"`[^`]+`|^```.*?^```$", page.read_text(encoding="utf-8"), re.M | re.S))
    assert set(re.findall(r"(?:^|`|&& )sbpipe ([a-z]+)", code, re.MULTILINE)) <= set(COMMANDS)
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", code, re.MULTILINE)) <= makefile_targets()
    assert set(re.findall(r"--set ([a-z_]+(?:\.[a-z_]+)?)=", code)) <= set(known_keys())


def test_the_front_page_is_short_and_begins_with_something_to_run() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert any(line.startswith("make demo") for line in lines[:35])


def test_the_loop_of_the_front_page_runs_as_it_stands(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(import torch\n.*?import sbpipe.*?)^```", page, re.M | re.S)
    assert sum(line.endswith("  #") for line in program.splitlines()) == 5
    short = program.replace("range(60)", "range(1)").replace("10_000", "2_000")
    assert short != program
    file = tmp_path / "train.py"
    file.write_text(short, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(file)], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "sbpipe: finished" in done.stderr


def test_how_to_contribute_is_short() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_index_reaches_every_page() -> None:
    reached = {(INDEX.parent / target.partition("#")[0]).resolve() for target in links_of(INDEX)}
    assert set(PAGES) - {INDEX} <= reached


def test_the_walk_of_a_candidate_names_real_functions_and_counts_them() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    found = re.search(
        r"^```walk\n(.*?)^```\n\n\*\*(\d+) functions in (\d+) files", page, re.MULTILINE | re.DOTALL
    )
    assert found is not None
    rows = [line.split(None, 1) for line in found[1].splitlines()]
    walked = [(file, name.strip()) for file, names in rows for name in names.split(",")]
    assert [step for step in walked if step[1] not in functions_in(ROOT / "sbpipe" / step[0])] == []
    assert (len(set(walked)), len({file for file, _ in walked})) == (int(found[2]), int(found[3]))


def functions_in(file: Path) -> set[str]:
    """The functions and methods of a file, by their qualified names."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    methods = {
        f"{kind.name}.{method.name}"
        for kind in body
        if isinstance(kind, ast.ClassDef)
        for method in kind.body
        if isinstance(method, ast.FunctionDef)
    }
    return methods | {function.name for function in body if isinstance(function, ast.FunctionDef)}
