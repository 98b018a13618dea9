"""The command line answers at once, prints what it resolved, and names mistakes."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.runs import sbpipe

from sbpipe.config import SelectionConfig, flatten, resolve


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys; sys.argv = ['sbpipe', '--help']\nfrom sbpipe.cli import main\ntry: main()\nexcept "
        "SystemExit: pass\n"
    )
    code += (
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules, 'help imported a heavy library'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["run", "trainer", "selector", "doctor", "bench", "keys"])
def test_every_command_explains_itself(command: str) -> None:
    done = sbpipe(command, "--help")
    assert done.returncode == 0
    assert "usage: sbpipe" in done.stdout


def test_print_config_shows_file_flags_and_assignments_resolved(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("seed = 3\n[selection]\nkeep = 0.9\n[sync]\ninterval = 4\n")
    done = sbpipe(
        "run",
        str(file),
        "--print-config",
        "--set",
        "selection.keep=0.25",
        "--sync-interval",
        "8",
        "--precision",
        "bf16",
    )
    config = resolve(flatten(tomllib.loads(done.stdout)))
    assert (config.seed, config.selection.keep, config.sync.interval, config.selector.precision) == (
        3,
        0.25,
        8,
        "bf16",
    )
    assert config.selection.history == SelectionConfig().history


def test_the_device_flag_means_the_device_of_its_role() -> None:
    assert "cuda:0" in sbpipe("trainer", "--device", "cuda:0", "--print-config").stdout
    assert (
        'device = "cuda:1"'
        in sbpipe("selector", "--device", "cuda:1", "--print-config").stdout.partition("[selector]")[2]
    )


def test_an_unknown_key_is_exit_2_without_a_traceback() -> None:
    done = sbpipe("run", "--set", "selection.kepe=0.25")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "sbpipe: selection.kepe = 0.25: unknown key. The nearest known key is selection.keep"
    )
    assert "Traceback" not in done.stderr


def test_a_policy_can_be_named_by_a_flag_and_a_wrong_one_is_named_back() -> None:
    assert 'policy = "random"' in sbpipe("run", "--policy", "random", "--print-config").stdout
    done = sbpipe("run", "--policy", "best")
    assert (done.returncode, "selection.policy = 'best'" in done.stderr) == (2, True)


def test_a_flag_that_is_the_name_of_a_setting_is_shown_how_to_give_it() -> None:
    done = sbpipe("run", "--epochs", "3")
    assert done.returncode == 2
    assert (
        "unrecognized arguments: --epochs. A setting is given by --set: --set train.epochs=VALUE"
        in done.stderr
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--keep", "third"), "selection.keep = 'third': must be a number or 'auto'"),
        (("--sync-interval", "often"), "sync.interval = 'often': must be a whole number or 'auto'"),
        (("--mode", "inline", "--selectors", "2"), "--selectors = 2: mode 'inline' starts no selectors"),
        (("--set", "view.flip=True"), "view.flip = 'True': must be true or false"),
    ],
)
def test_what_cannot_be_meant_is_told_in_the_words_of_the_settings(
    arguments: tuple[str, ...], says: str
) -> None:
    done = sbpipe("run", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"sbpipe: {says}")
