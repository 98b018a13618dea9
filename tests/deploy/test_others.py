"""SkyPilot's file and the Ray actors: their commands are ours, their form is theirs."""

import ast
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.deployed import flags_of, parse_command

DEPLOY = Path(__file__).parents[2] / "deploy"
ACTORS = DEPLOY / "ray" / "actors.py"


def sky_file() -> dict[str, Any]:
    loaded = yaml.safe_load((DEPLOY / "skypilot.yaml").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def test_skypilots_file_starts_each_role_with_keys() -> None:
    trainer, selector = flags_of(sky_file()["run"])
    assert (trainer.command, trainer.bind, trainer.keys) == ("trainer", "tcp://0.0.0.0:5570", "~/keys")
    assert (selector.command, selector.keys) == ("selector", "~/keys/selector.key")
    assert selector.connect == "tcp://$trainer:5570"


def test_skypilots_own_schema_accepts_the_file() -> None:
    schemas = pytest.importorskip("sky.utils.schemas", reason="pip install skypilot")
    jsonschema = pytest.importorskip("jsonschema", reason="pip install jsonschema")
    jsonschema.validate(sky_file(), schemas.get_task_schema())


@pytest.mark.filterwarnings("ignore")
def test_skypilots_own_loader_makes_a_task_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # where it keeps its state
    sky = pytest.importorskip("sky", reason="pip install skypilot")
    monkeypatch.chdir(DEPLOY.parent)
    task = sky.Task.from_yaml("deploy/skypilot.yaml")
    assert task.num_nodes == 2
    assert task.file_mounts == {"~/keys": "./keys"}
    assert [list(each.accelerators) for each in task.resources] == [["A10G"]]
    assert set(task.envs) == {"CONFIG", "RUN", "DEVICE"}


@pytest.mark.parametrize("part", ["setup", "run"])
def test_skypilots_scripts_are_shell(part: str) -> None:
    done = subprocess.run(["bash", "-n"], input=sky_file()[part], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_actors_give_each_role_words_that_we_know() -> None:
    """Without Ray: the words are read from the source."""
    calls = [
        node
        for node in ast.walk(ast.parse(ACTORS.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "run_role"
    ]
    roles = []
    for call in calls:
        # A name stands for its value, a starred one for words of the user.
        plain = [word for word in call.args if not isinstance(word, ast.Starred)]
        words = [word.value if isinstance(word, ast.Constant) else "value" for word in plain]
        roles.append(parse_command(["sbpipe", *map(str, words)]).command)
    assert roles == ["trainer", "selector"]


def test_every_command_of_the_page_is_ours() -> None:
    page = (DEPLOY.parent / "docs" / "deployment.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    commands = [args.command for block in blocks for args in flags_of(block)]
    assert {"run", "trainer", "selector", "keys"} <= set(commands)
