"""The Compose files and the image: what they promise about rights, settings and layers, without an engine."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

DOCKER = Path(__file__).parents[2] / "docker"
COMPOSE_FILES = sorted(DOCKER.glob("compose*.yaml"))
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
VARIABLE = re.compile(r"\$\{([A-Z_]+)(?::-([^}]*))?\}")
each_file = pytest.mark.parametrize("path", COMPOSE_FILES, ids=lambda path: path.name)


class _Loader(yaml.SafeLoader):
    """YAML as Compose reads it."""


_Loader.add_constructor("!reset", lambda loader, node: None)


def load(path: Path) -> dict[str, Any]:
    loaded = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    assert isinstance(loaded, dict)
    return loaded


BASE = load(DOCKER / "compose.yaml")


def strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        for part in value:
            yield from strings_in(part)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("service", BASE["services"])
def test_a_service_has_no_capabilities_gains_none_and_writes_to_volumes_alone(service: str) -> None:
    settings = BASE["services"][service]
    assert settings["cap_drop"] == ["ALL"]
    assert settings["security_opt"] == ["no-new-privileges:true"]
    assert settings["read_only"] is True
    assert settings["tmpfs"] == ["/tmp"]


@each_file
def test_no_file_gives_rights_back(path: Path) -> None:
    forbidden = {"privileged", "cap_add", "user", "pid", "ipc", "userns_mode", "devices", "cgroup_parent"}
    for name, settings in load(path)["services"].items():
        assert not forbidden & settings.keys(), name
        if path.name != "compose.yaml":
            assert not {"cap_drop", "security_opt", "read_only"} & settings.keys(), name
    assert "docker.sock" not in path.read_text(encoding="utf-8")


@each_file
def test_an_overlay_changes_only_services_that_are_there(path: Path) -> None:
    assert load(path)["services"].keys() <= BASE["services"].keys()


def test_roles_have_no_network_by_default_and_the_page_is_on_loopback() -> None:
    for role in ("trainer", "selector"):
        assert BASE["services"][role]["network_mode"] == "${SBPIPE_NETWORK:-none}"
        assert "ports" not in BASE["services"][role]
    assert all(port.startswith("127.0.0.1:") for port in BASE["services"]["watch"]["ports"])


def test_between_hosts_both_roles_speak_tcp_with_keys_they_cannot_change() -> None:
    services = load(DOCKER / "compose.hosts.yaml")["services"]
    for role in ("trainer", "selector"):
        assert services[role]["environment"]["SBPIPE_LINK"].startswith("tcp://")
        assert [volume for volume in services[role]["volumes"] if volume.endswith(":/keys:ro")]
    assert "ports" not in services["selector"]


def test_every_setting_of_the_compose_files_is_in_env_with_its_default() -> None:
    listed = dict(
        re.findall(r"^#([A-Z_]+)=(.*)$", (DOCKER / ".env").read_text(encoding="utf-8"), re.MULTILINE)
    )
    texts = (text for path in COMPOSE_FILES for text in strings_in(load(path)))
    used = {name: default for text in texts for name, default in VARIABLE.findall(text)}
    assert listed == used


def test_the_image_runs_as_a_user_without_rights() -> None:
    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE) == ["sbpipe"]
    assert "setcap" not in DOCKERFILE
    assert "sudo" not in DOCKERFILE


def test_the_source_comes_after_the_layer_of_dependencies() -> None:
    image = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]
    steps = ["--requirement /tmp/requirements.txt", "COPY --from=wheel", "sbom.cdx.json", "COPY --chmod=755"]
    places = [image.index(step) for step in steps]
    assert places == sorted(places)


def test_everything_that_the_image_copies_is_given_to_the_builder() -> None:
    ignored = (DOCKER.parent / ".dockerignore").read_text(encoding="utf-8").splitlines()
    given = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = set()
    for words in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        copied |= {word for word in words.split()[:-1] if not word.startswith("--")}
    assert copied == given
    assert all((DOCKER.parent / name).exists() for name in copied)
