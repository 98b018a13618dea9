"""Settings: what is read is what is meant, and a mistake is named with its way out."""

import tomllib
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.runs import train_inline

from sbpipe.config import (
    digest,
    flatten,
    from_dict,
    known_keys,
    least_staleness,
    parse_assignment,
    read_toml,
    resolve,
    to_dict,
    to_toml,
    warnings_of,
)
from sbpipe.config.parser import kind_of
from sbpipe.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.toml"))


def test_an_unknown_key_names_the_nearest_known_one() -> None:
    with pytest.raises(
        ConfigError, match=r"selection\.kep = 0\.2: unknown key\. The nearest known key is selection\.keep"
    ):
        resolve({"selection.kep": 0.2})


def test_a_key_without_its_section_is_found_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"nearest known key is sync\.interval"):
        resolve({"interval": 4})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("selection.keep", 0.0, "at least 0.001"),
        ("selection.keep", 1.5, "at most 1"),
        ("train.batch_size", 0, "at least 1"),
        ("train.batch_size", "many", "a whole number"),
        ("train.batch_size", True, "a whole number"),
        ("mode", "lockstp", "Did you mean 'lockstep'"),
        ("train.epochs", float("nan"), "above 0"),
    ],
)
def test_a_value_outside_its_limits_is_refused_with_its_meaning(
    key: str, value: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve({key: value})


def test_later_layers_win() -> None:
    assert resolve({"seed": 1}, {"seed": 2}).seed == 2


def test_the_command_line_takes_toml_values_and_bare_words() -> None:
    assert parse_assignment("selection.keep=0.25") == ("selection.keep", 0.25)
    assert parse_assignment("schedule.milestones=[0.5, 0.75]") == ("schedule.milestones", [0.5, 0.75])
    assert parse_assignment("data.name=cifar10") == ("data.name", "cifar10")
    with pytest.raises(ConfigError, match="is not an assignment"):
        parse_assignment("selection.keep")


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "seed": st.integers(0, 2**40),
            "selection.keep": st.floats(0.01, 1.0),
            "data.path": st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=30),
            "schedule.milestones": st.lists(st.floats(0, 1), max_size=4),
            "model.options": st.dictionaries(
                st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.integers(0, 9), max_size=3
            ),
        },
    )
)
def test_printed_settings_read_back_the_same(values: dict[str, object]) -> None:
    config = resolve(values)
    assert resolve(flatten(tomllib.loads(to_toml(config)))) == config
    assert from_dict(to_dict(config)) == config


def test_a_staleness_bound_that_cannot_be_met_names_the_smallest_legal_value() -> None:
    with pytest.raises(ConfigError, match=r"sync\.depth and sync\.interval = 8\. Set it to at least 9"):
        resolve({"sync.interval": 8, "sync.depth": 2, "sync.max_staleness": 8})
    resolve({"sync.interval": 8, "sync.depth": 2, "sync.max_staleness": 9})
    assert least_staleness(resolve({"mode": "fixed-lag", "sync.lag": 3})) == 3
    assert least_staleness(resolve({"mode": "lockstep"})) == 0


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="Set only one"):
        resolve({"train.steps": 5, "train.seconds": 5.0})


def test_a_setting_without_effect_warns() -> None:
    assert (
        "sync.interval = 8 has no effect" in warnings_of(resolve({"mode": "lockstep", "sync.interval": 8}))[0]
    )
    assert warnings_of(resolve({})) == []


def test_a_guard_that_would_pass_over_all_that_is_not_learned_yet_is_warned_of() -> None:
    guard = {"selection.policy": "sb", "selection.outliers": "skip", "selection.outlier_quantile": 0.8}
    (note,) = warnings_of(resolve(guard))
    assert "quantile 0.8" in note
    assert "Set selection.warmup" in note
    for fix in (
        {"selection.warmup": 4000},
        {"selection.outliers": "clip"},
        {"selection.outlier_quantile": 0.99},
    ):
        assert warnings_of(resolve(guard | fix)) == []
    (note,) = warnings_of(resolve(guard | {"selection.policy": "random"}))
    assert "has no effect" in note


def test_the_digest_ignores_what_each_role_may_choose_and_sees_the_rest() -> None:
    base = digest(resolve({}))
    assert (
        digest(resolve({"selector.device": "cuda:1", "link.bind": "tcp://127.0.0.1:9", "data.path": "x"}))
        == base
    )
    assert digest(resolve({"optim.lr": 0.2})) != base


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_toml(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("mode = ")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_toml(broken)
    broken.write_text("data = 3")
    with pytest.raises(ConfigError, match=r"Write \[data\]"):
        read_toml(broken)


def test_a_key_of_an_older_version_is_ignored_in_a_runs_file_and_explained_where_a_user_gives_it() -> None:
    config = resolve({"seed": 3})
    old = to_dict(config)
    old["schedule"]["by"] = "auto"
    assert from_dict(old) == config
    with pytest.raises(ConfigError, match=r"schedule\.by = 'steps': is no setting any more\. Leave it out"):
        resolve({"schedule.by": "steps"})


def test_every_key_has_a_meaning() -> None:
    assert all(known.metadata["meaning"] for known in known_keys().values())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_in_the_tree_loads(path: Path) -> None:
    resolve(read_toml(path))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
@pytest.mark.slow
def test_every_config_in_the_tree_runs_a_step(path: Path, tmp_path: Path) -> None:
    tiny = {
        "data.name": "embedded",
        "data.examples": 64,
        "data.test_examples": 16,
        "train.batch_size": 4,
        "train.steps": 1,
    }
    tiny |= {"data.prune": "", "data.prune_share": 0.0}
    config = resolve(read_toml(path), tiny, {"mode": "inline", "checkpoint.every": 0})
    assert train_inline(config, tmp_path / "run")["steps"] == 1


def test_every_number_has_a_least_and_a_greatest_value() -> None:
    for key, known in known_keys().items():
        limits, kind = known.metadata, kind_of(known)
        if kind in (int, float) or get_args(known.type) in ((int,), (float,)):
            assert limits["high"] is not None, f"{key} has no greatest value"
            assert (limits["low"] is None) != (limits["above"] is None), f"{key} needs one least value"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sync.depth", 10**9),
        ("link.heartbeat_s", 1e-9),
        ("link.chunk_mib", 1e-9),
        ("train.threads", 100_000),
        ("selector.threads", 100_000),
        ("data.workers", 10_000),
        ("train.batch_size", 10**12),
        ("optim.lr", float("inf")),
        ("selection.keep", 1e-9),
        ("schedule.milestones", [0.5, 7.0]),
        ("schedule.milestones", ["a"]),
        ("selector.allow", [3]),
        ("seed", 16**5000),
        ("train.epochs", 10**400),
        ("data.path", "a\x1b[2Jb"),
        ("data.path", "\ud800"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isprintable() else type(value).__name__,
)
def test_nonsense_is_refused_in_one_line(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{key} = ") as caught:
        resolve({key: value})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "text",
    ["seed = " + "9" * 5000, "a = " + "[" * 10_000, "\0", "[data]\npath = 3\n"],
    ids=["digits", "nesting", "nul", "type"],
)
def test_a_hostile_settings_file_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve(read_toml(path))
    assert len(str(caught.value).splitlines()) == 1
