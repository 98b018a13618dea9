"""Each example is a loop before and after: at most five lines apart, and it runs."""

import difflib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sbpipe.ownloop.loader import SelectedLoader

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
NAMES = ("plain", "accelerate", "huggingface_bert", "huggingface_gpt2", "lightning", "torchvision")
INLINE = "settings={'mode': 'inline'}, losses="


def difference(name: str) -> list[str]:
    """The lines of code that are added (+) or taken away (-)."""
    texts = ((EXAMPLES / name / f"{which}.py").read_text() for which in ("before", "after"))
    before, after = ([line for line in text.splitlines() if line.strip()] for text in texts)
    return [line.rstrip() for line in difflib.ndiff(before, after) if line[0] in "+-"]


def test_no_example_is_forgotten() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_selection_changes_five_lines_at_most(name: str) -> None:
    marks = [line[0] for line in difference(name)]
    assert 0 < max(marks.count("+"), marks.count("-")) <= 5


@pytest.mark.parametrize("name", NAMES)
def test_its_page_shows_the_whole_difference(name: str) -> None:
    page = EXAMPLES.parent / "docs" / "clients" / f"{name.split('_')[0]}.md"
    shown = re.findall(r"^```diff\n(.*?)\n```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert "\n".join(difference(name)) in shown


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_every_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, without one for the selector: the libraries are slow to import."""
    monkeypatch.chdir(tmp_path)
    path = EXAMPLES / name / "after.py"
    source = path.read_text().replace("losses=", INLINE, 1)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, str(path), "exec"), names)
    if isinstance(names.get("loader"), SelectedLoader):
        # What the end of a process does.
        names["loader"].close()
    assert "loss " in capsys.readouterr().out
    (summary,) = tmp_path.glob("runs/*/summary.json")
    found = json.loads(summary.read_text())
    assert (found["status"], found["selector.scored"] > 0) == ("finished", True)


def test_an_example_runs_as_it_is_with_a_selector_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "plain" / "after.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "loss 0." in done.stdout
    assert "sbpipe: finished" in done.stderr
