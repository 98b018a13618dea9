"""`sbpipe-role`: which command it makes of the environment and of what is in the run directory."""

import os
import subprocess
from pathlib import Path

import pytest

from sbpipe.cli import build_parser

ROLE = Path(__file__).parents[2] / "docker" / "role.sh"


def run_role(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script with `folder` as /runs, and an `sbpipe` that only says how it was called."""
    script, fake = folder / "role.sh", folder / "sbpipe"
    script.write_text(
        ROLE.read_text(encoding="utf-8").replace("run=/runs/", f"run={folder}/"), encoding="utf-8"
    )
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["sh", str(script), *words],
        env={"PATH": path, "SBPIPE_RUN": "demo", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def command_of(folder: Path, *words: str, **environment: str) -> list[str]:
    done = run_role(folder, *words, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize(("role", "flag"), [("trainer", "--bind"), ("selector", "--connect")])
def test_roles_meet_at_a_socket_without_keys_unless_told_otherwise(
    tmp_path: Path, role: str, flag: str
) -> None:
    command = command_of(tmp_path, role, "--device", "cpu")
    assert command[command.index(flag) + 1] == "ipc:///link/trainer"
    assert "--keys" not in command
    assert build_parser().parse_args(command).device == "cpu"


@pytest.mark.parametrize(("role", "flag"), [("trainer", "--bind"), ("selector", "--connect")])
def test_over_tcp_both_roles_bring_their_keys(tmp_path: Path, role: str, flag: str) -> None:
    command = command_of(tmp_path, role, SBPIPE_LINK="tcp://trainer:5570")
    assert command[command.index(flag) + 1] == "tcp://trainer:5570"
    assert command[command.index("--keys") + 1] == "/keys"
    assert str(build_parser().parse_args(command).keys) == "/keys"


def test_a_run_that_was_cut_off_is_resumed_and_a_new_one_begun(tmp_path: Path) -> None:
    assert "--resume" not in command_of(tmp_path, "trainer")
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "config.json").write_text("{}")
    assert "--resume" in command_of(tmp_path, "trainer")
    assert "--resume" not in command_of(tmp_path, "selector")


@pytest.mark.parametrize("role", ["trainer", "selector"])
def test_a_finished_run_is_left_alone(tmp_path: Path, role: str) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "summary.json").write_text('{\n  "status": "finished"\n}')
    assert "nothing to do" in run_role(tmp_path, role).stdout


def test_settings_of_the_environment_reach_both_roles_alike(tmp_path: Path) -> None:
    settings = {"SBPIPE_SET": "train.epochs=2 selection.keep=0.25", "SBPIPE_SYNC_INTERVAL": "3"}
    for role in ("trainer", "selector"):
        words = " ".join(command_of(tmp_path, role, **settings))
        assert "--set train.epochs=2" in words
        assert "--set selection.keep=0.25" in words
        assert "--sync-interval 3" in words


def test_blanks_and_stars_in_settings_are_never_run_nor_expanded(tmp_path: Path) -> None:
    command = command_of(tmp_path, "trainer", SBPIPE_SET="/* $(touch$IFS/tmp/x)")
    assert "/*" in command
    assert "$(touch$IFS/tmp/x)" in command


def test_another_role_is_refused(tmp_path: Path) -> None:
    done = run_role(tmp_path, "judge")
    assert done.returncode == 2
    assert "judge is neither trainer nor selector" in done.stderr
