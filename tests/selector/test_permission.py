"""A selector runs and reads what its own user named: a welcome alone leads to no code, no file, no folder."""

import ast
import json
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.runs import HANG_S, SMALL, settings, small, started
from support.runs import sbpipe as command

import sbpipe
from sbpipe.cli import build_parser
from sbpipe.commands.settings import given_settings
from sbpipe.config import Config, known_keys, resolve, to_dict, to_json
from sbpipe.errors import ConfigError, PeerRejected, SbpipeError
from sbpipe.link.messages import Welcome
from sbpipe.process import roles
from sbpipe.runs.spans import Spans
from sbpipe.selector.build import Builder
from sbpipe.selector.permission import Permission, written_by_us
from sbpipe.selector.settings import merge, settings_in

HUB = {"model.name": "torch.hub:load", "model.options": {"repo_or_dir": "evil/repo", "model": "x"}}
MINE = {"model.name": "mine:model", "model.options": {"width": 4}}


def welcome(config: Config) -> Welcome:
    return Welcome(to_json(config), "", 0.5, 4.0)


def builder(permission: Permission = Permission(), folder: Path | None = None) -> Builder:  # noqa: B008
    return Builder("s-1", permission, torch.device("cpu"), Spans(), folder)


def refused(config: Config, permission: Permission) -> str:
    """What is said of the refusal; "" if everything is permitted."""
    try:
        permission.check(config)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that is there once the module `trap` was imported."""
    path = tmp_path / "was-here"
    (tmp_path / "trap.py").write_text(f"open({str(path)!r}, 'w').close()\ndef load(**_): return (), ()\n")
    monkeypatch.chdir(tmp_path)
    yield path
    sys.modules.pop("trap", None)


# --- code -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["model.name", "data.name", "loss.name"])
def test_no_code_that_a_welcome_names_is_imported(key: str, marker: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{key} = 'trap:load': the trainer asks .*--allow trap:load"):
        builder()(welcome(small(**{key.replace(".", "__"): "trap:load"})))
    assert not marker.exists()


def test_a_refusal_names_what_was_asked_and_the_flag_that_would_allow_it() -> None:
    said = refused(resolve(HUB), Permission())
    assert "model.name = 'torch.hub:load'" in said
    assert "--allow torch.hub:load" in said
    assert "SBPIPE_ALLOW" in said
    assert "\n" not in said


def test_named_parts_of_ours_need_no_leave() -> None:
    for name in ("small_resnet", "resnet50"):
        assert not refused(resolve({"model.name": name, "model.options": {"width": 8}}), Permission())


def test_what_the_user_allows_by_name_may_have_any_options() -> None:
    assert not refused(resolve(MINE), Permission(frozenset(["mine:model"])))
    assert refused(resolve(MINE | {"data.name": "mine:data"}), Permission(frozenset(["mine:model"])))


def test_what_the_selector_was_given_itself_is_allowed_with_the_very_options() -> None:
    assert not refused(resolve(MINE), Permission(given=MINE))
    for given in ({"model.name": "mine:model"}, MINE | {"model.options": {"width": 5}}):
        assert "model.options" in refused(resolve(MINE), Permission(given=given))


def test_every_plugin_in_the_product_is_named_by_a_setting_that_is_checked() -> None:
    reaching = {key for key, known in known_keys().items() if "code" in known.metadata["reaches"]}
    named = set()
    for path in Path(sbpipe.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if is_call and node.func.id == "import_plugin":  # type: ignore[attr-defined]
                named.add(node.args[0].value)  # type: ignore[attr-defined]
    # --job is this process's own command line, which may run what it likes.
    assert named == reaching | {"--job"}


def test_every_free_text_says_whether_it_leads_out_of_the_program() -> None:
    texts = {
        key for key, known in known_keys().items() if known.type is str and not known.metadata["choices"]
    }
    leads = {key for key in texts if known_keys()[key].metadata["reaches"]}
    # Used by the process whose user gave them, never from a welcome: its device, link, trackers, optimizer.
    own = {"train.device", "optim.name", "selector.device", "selector.events", "trackers.project"}
    own |= {"checkpoint.spare"}
    assert texts - leads == own | {"link.bind", "link.connect", "link.keys"}


# --- files ----------------------------------------------------------------------------------------


def test_a_selector_needs_no_leave_for_what_only_the_trainer_reads() -> None:
    assert not refused(resolve({"train.init_from": "/etc/passwd"}), Permission())


@pytest.mark.parametrize("key", ["data.path", "data.prune", "selection.irreducible"])
def test_no_file_that_a_welcome_names_is_read_unless_it_is_the_users(key: str) -> None:
    config = resolve({key: "/etc/passwd"})
    assert f"{key} = '/etc/passwd': the trainer asks this selector to read it" in refused(
        config, Permission()
    )
    assert not refused(config, Permission(given={key: "/etc/passwd"}))
    assert refused(config, Permission(given={key: "/etc/shadow"}))


def test_a_folder_allows_what_is_in_it_and_nothing_that_a_link_or_dots_lead_to(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    permission = Permission(frozenset([str(folder), ""]))
    assert not refused(resolve({"data.path": str(folder / "set.npz")}), permission)
    for outside in (folder / "link" / "other.npz", folder / ".." / "other.npz", tmp_path, Path("here.npz")):
        assert refused(resolve({"data.path": str(outside)}), permission), outside


def test_paths_of_the_users_own_run_are_allowed(run_path: Path) -> None:
    config = resolve(MINE | {"data.path": "set.npz"})
    run_path.mkdir()
    (run_path / "config.json").write_text(to_json(config))
    assert not refused(config, Permission(run_dir=run_path))
    assert refused(resolve({"data.path": "other.npz"}), Permission(run_dir=run_path))


@pytest.mark.parametrize("which", ["config.json", "."])
def test_a_run_that_others_may_write_allows_nothing(which: str, run_path: Path) -> None:
    run_path.mkdir()
    (run_path / "config.json").write_text(to_json(resolve(MINE)))
    (run_path / which).chmod(0o777)
    assert refused(resolve(MINE), Permission(run_dir=run_path))


def test_a_run_of_another_user_allows_nothing(run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_path.mkdir()
    (run_path / "config.json").write_text(to_json(resolve(MINE)))
    ours = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
    assert refused(resolve(MINE), Permission(run_dir=run_path))


@pytest.mark.parametrize("content", ["", "[]", "{", '{"model": 3}', "[" * 100_000, "\0"])
def test_a_damaged_config_of_a_run_allows_nothing(content: str, run_path: Path) -> None:
    run_path.mkdir()
    (run_path / "config.json").write_text(content)
    assert written_by_us(run_path) == {}


# --- what is written ------------------------------------------------------------------------------


def test_a_welcome_chooses_no_folder_to_write_to(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    config = small(selector__events=str(theirs))
    made = builder(folder=ours)
    made(welcome(config))
    made.close()
    assert [field.name for field in fields(Welcome)] == [
        "config",
        "shared_memory",
        "heartbeat_s",
        "lost_after_s",
        "is_channels_last",
    ]
    assert list(theirs.iterdir()) == []
    assert [path.name for path in ours.iterdir()] == ["events-selector-s-1.jsonl"]


def test_a_selector_without_a_folder_says_so(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.INFO, "sbpipe.selector"):
        made = builder()
        made(welcome(small()))
        made.close()
    assert "events are not kept: --connect RUN_DIR or --set selector.events=DIR" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_leave_folders_and_downloads_never_come_from_the_trainer() -> None:
    theirs = resolve({"selector.allow": ["evil:f"], "selector.events": "/tmp", "data.download": True})
    merged = merge(theirs, {})
    assert (merged.selector.allow, merged.selector.events, merged.data.download) == ([], "", False)
    assert merge(theirs, {"data.download": True}).data.download


# --- what is no settings at all -------------------------------------------------------------------


def tables(**changes: Any) -> str:
    return json.dumps(to_dict(resolve(SMALL)) | changes)


@pytest.mark.parametrize(
    "config",
    [
        "",
        "[]",
        "null",
        "{",
        "[" * 100_000,
        '{"a":' * 50_000,
        tables(seed="0"),
        tables(model=3),
        tables(unheard={"of": 1}),
        tables(seed=-1),
        '{"train": {"epochs": 1e999}}',
        '{"train": {"epochs": 1' + "0" * 400 + "}}",
        '{"train": {"steps": 1' + "0" * 400 + "}}",
        '{"train": {"steps": ' + "9" * 5000 + "}}",
        '{"data": {"path": "a\\u0000b"}}',
        '{"data": {"path": "\\ud800"}}',
        '{"data": {"name": "\\u001b[2J:x"}}',
        '{"schedule": {"milestones": ["x"]}}',
        '{"schedule": {"milestones": [NaN]}}',
    ],
    ids=lambda config: config[:24],
)
def test_settings_that_are_none_are_refused_in_one_line(config: str) -> None:
    with pytest.raises(
        PeerRejected, match="the settings that the trainer sent cannot be used here"
    ) as caught:
        settings_in(Welcome(config, "", 0.5, 4.0))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "settings",
    [
        {"model.name": "no_such"},
        {"model.name": "resnet18", "model.options": {"norm_layer": "os:system"}},
        {"model.name": "resnet18", "model.options": {"weights": "IMAGENET1K_V1"}},
        {"model.name": "resnet18", "model.options": {"layers": [1]}},
        {"model.name": "resnet18", "model.options": {"groups": 0}},
        {"model.name": "vit_b_16", "model.options": {"patch_size": 0}},
        {"model.name": "small_resnet", "model.options": {"depth": 10**9}},
        {"model.name": "small_cnn", "model.options": {"width": "8"}},
        {"data.name": "no_such"},
        {"loss.name": "no_such"},
        {"view.crop": 999, "data.examples": 20_000},
    ],
    ids=lambda value: str(value)[:60],
)
def test_nonsense_for_a_named_part_ends_in_one_line(settings: dict[str, Any]) -> None:
    with pytest.raises(SbpipeError) as caught:
        builder()(welcome(resolve(SMALL | {"model.options": {}} | settings)))
    assert len(str(caught.value).splitlines()) == 1


# --- as users start it ----------------------------------------------------------------------------

OWN = """
from torch import nn

def model(num_classes, input_shape, width):
    size = input_shape[0] * input_shape[1] * input_shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, width), nn.ReLU(), nn.Linear(width, num_classes))
"""


@pytest.fixture
def own_parts(tmp_path: Path) -> dict[str, Any]:
    """Settings of a run with code and data of the user's own."""
    (tmp_path / "mine.py").write_text(OWN)
    x, y = np.arange(600 * 64, dtype=np.uint8).reshape(600, 1, 8, 8), np.arange(600) % 10
    np.savez(tmp_path / "set.npz", x_train=x, y_train=y, x_test=x[:50], y_test=y[:50], allow_pickle=False)
    return {"data__name": "arrays", "data__path": str(tmp_path / "set.npz")} | {
        key.replace(".", "__"): value for key, value in MINE.items()
    }


def test_a_supervised_run_with_parts_of_the_users_own_needs_no_flag(
    own_parts: dict[str, Any], tmp_path: Path, run_path: Path
) -> None:
    done = command("run", "--run-dir", str(run_path), *settings(**own_parts), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_lone_selector_refuses_its_trainers_code_in_one_line(
    own_parts: dict[str, Any], tmp_path: Path, run_path: Path
) -> None:
    run_path.mkdir()
    run_path.chmod(0o777)  # so that its config.json counts as nobody's word
    trainer = ("trainer", "--bind", "tcp://127.0.0.1:0", "--run-dir", str(run_path), *settings(**own_parts))
    with started(*trainer, cwd=tmp_path), started("selector", "--connect", str(run_path)) as refused:
        said, _ = refused.communicate(timeout=HANG_S)
    assert refused.returncode == 2, said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("sbpipe: data.path = ")


def test_what_is_allowed_comes_from_the_flag_the_settings_and_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SBPIPE_ALLOW", "mine:data,mine:loss")
    args = build_parser().parse_args(["selector", "--allow", "mine:model,/data"])
    given = given_settings(args)
    made = roles._builder_of(resolve(given), given, "s-1", torch.device("cpu"), Spans(), None)
    assert made._permission.allowed == {"mine:data", "mine:loss", "mine:model", "/data"}
