"""The bill of materials: complete, well formed, the same for the same contents. Versions and their bounds."""

import importlib.util
import json
import re
import shutil
import tomllib
from email.message import Message
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {name: lines for name, lines in PROJECT["optional-dependencies"].items() if name != "dev"}
REQUIREMENTS = [Requirement(line) for lines in (PROJECT["dependencies"], *EXTRAS.values()) for line in lines]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "docker" / "sbom.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sbom = load_script()


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    document = sbom.bill([sbom.interpreter(), *sbom.distributions()])
    assert isinstance(document, dict)
    return document


def test_everything_installed_is_listed_with_its_version(bill: dict[str, Any]) -> None:
    listed = {part["purl"] for part in (*bill["components"], bill["metadata"]["component"]) if "purl" in part}
    for name in ("torch", "numpy", "pyzmq", "msgpack", "sbpipe"):
        assert f"pkg:pypi/{name}@{metadata.version(name).replace('+', '%2B')}" in listed


def test_references_are_unique_and_lead_to_a_component(bill: dict[str, Any]) -> None:
    refs = [part["bom-ref"] for part in (*bill["components"], bill["metadata"]["component"])]
    assert len(refs) == len(set(refs))
    named = [entry["ref"] for entry in bill["dependencies"]]
    assert sorted(named) == sorted(refs)
    assert {ref for entry in bill["dependencies"] for ref in entry["dependsOn"]} <= set(refs)


def test_what_sbpipe_needs_stands_in_the_graph(bill: dict[str, Any]) -> None:
    graph = {entry["ref"]: entry["dependsOn"] for entry in bill["dependencies"]}
    assert {"pypi/torch", "pypi/pyzmq", "pypi/msgpack"} <= set(graph["pypi/sbpipe"])
    assert "pypi/pytest" not in graph["pypi/sbpipe"]


def test_nothing_of_our_own_working_is_left_in_it_and_the_bytes_repeat(bill: dict[str, Any]) -> None:
    again = sbom.bill([*reversed(list(sbom.distributions())), sbom.interpreter()])
    assert json.dumps(bill) == json.dumps(again)
    assert sbom.NEEDS not in {key for part in bill["components"] for key in part}


@pytest.mark.parametrize(
    ("headers", "licences"),
    [
        ({"License-Expression": "MIT OR Apache-2.0"}, [{"expression": "MIT OR Apache-2.0"}]),
        ({"License": "BSD 3-Clause"}, [{"license": {"name": "BSD 3-Clause"}}]),
        (
            {"License": "the whole text\nof it", "Classifier": "License :: OSI Approved :: MIT License"},
            [{"license": {"name": "MIT License"}}],
        ),
        ({}, []),
    ],
)
def test_a_licence_is_an_expression_or_a_name_never_a_text(
    headers: dict[str, str], licences: list[dict[str, Any]]
) -> None:
    about = Message()
    for name, value in headers.items():
        about[name] = value
    assert sbom.licences_of(about) == licences


def test_requirements_of_extras_are_not_needs() -> None:
    lines = ["Typing_Extensions>=4", "numpy<3,>=1.26; python_version > '3'", 'torch ; extra == "gpu"']
    assert sbom.needed_by(lines) == ["numpy", "typing-extensions"]


def test_names_of_packages_come_without_versions_alternatives_and_architectures() -> None:
    assert sbom.names_in("libc6 (>= 2.36), debconf (>= 0.5) | debconf-2.0, python3:any, ") == [
        "debconf",
        "debconf-2.0",
        "libc6",
        "python3",
    ]


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no Debian")
def test_packages_of_debian_are_listed_with_version_and_licence() -> None:
    packages = {part["name"]: part for part in sbom.packages()}
    assert packages["dpkg"]["purl"].startswith(f"pkg:deb/debian/dpkg@{packages['dpkg']['version']}?arch=")
    assert packages["tar"]["licenses"]


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_every_dependency_has_a_least_and_a_greatest_version(requirement: Requirement) -> None:
    assert {specifier.operator for specifier in requirement.specifier} == {">=", "<"}
    try:
        installed = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        pytest.skip("not installed here")
    assert requirement.specifier.contains(installed)


def test_every_bound_of_a_core_dependency_says_why() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for line in PROJECT["dependencies"]:
        assert re.search(rf'"{re.escape(line)}", +# \w+', text), line
