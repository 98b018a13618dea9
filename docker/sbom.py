#!/usr/bin/env python3
"""A bill of materials of what is installed here: `sbom.py [--no-system]` writes CycloneDX 1.6 JSON.

It lists the Python that runs it, its distributions with versions, licences and what needs what, the libraries
that wheels declare inside themselves (PEP 770), and Debian's packages. It imports nothing that it lists; the
same contents give the same bytes.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

SUBJECT = "sbpipe"
COPYRIGHTS = Path("/usr/share/doc")
DPKG_FIELDS = (
    "db:Status-Status",
    "Package",
    "Version",
    "Architecture",
    "Maintainer",
    "Depends",
    "Pre-Depends",
)
MAX_LICENCE_CHARS = 80
"""Longer ones are the licence's whole text, which belongs to the distribution, not into a list."""

Component = dict[str, Any]
NEEDS = "needs"
"""What a component needs, by name; taken out of it before it is written."""


# --- Python -------------------------------------------------------------------------------------------------


def distributions() -> Iterator[Component]:
    """Everything this Python can import, as its metadata tells it."""
    for distribution in metadata.distributions():
        about = distribution.metadata
        name = normal(about["Name"])
        yield {
            "type": "library",
            "bom-ref": f"pypi/{name}",
            "name": name,
            "version": distribution.version,
            "purl": f"pkg:pypi/{name}@{quote(distribution.version)}",
            "licenses": licences_of(about),
            NEEDS: [f"pypi/{needed}" for needed in needed_by(distribution.requires or [])],
        }
        yield from declared_inside(name, distribution)


def normal(name: str) -> str:
    """A distribution's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licences_of(about: Any) -> list[dict[str, Any]]:
    """An SPDX expression if it has one, else what its author calls it."""
    if expression := about.get("License-Expression"):
        return [{"expression": expression}]
    words = (about.get("License") or "").strip()
    classified = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier") or []
        if line.startswith("License ::")
    ]
    names = [words] if words and "\n" not in words and len(words) <= MAX_LICENCE_CHARS else classified
    return [{"license": {"name": name}} for name in names]


def needed_by(requirements: Iterable[str]) -> list[str]:
    """The names in a distribution's requirements, without those of its extras."""
    plain = [line for line in requirements if "extra ==" not in line]
    return sorted({normal(re.match(r"[\w.-]+", line.strip())[0]) for line in plain})  # type: ignore[index]


def declared_inside(name: str, distribution: metadata.Distribution) -> Iterator[Component]:
    """The libraries that a wheel says it has been built with (PEP 770); most wheels say nothing."""
    for file in distribution.files or []:
        if file.parts[-2:-1] != ("sboms",) or file.suffix != ".json":
            continue
        document = json.loads(file.read_text(encoding="utf-8"))
        for part in document.get("components", []):
            described = {key: part[key] for key in ("name", "version", "purl", "licenses") if key in part}
            version = part.get("version", "")
            yield {
                "type": "library",
                "bom-ref": f"inside/{name}/{part['name']}@{version}",
                **described,
                NEEDS: [],
            }


def interpreter() -> Component:
    """The Python itself: in an official image it is no package of the distribution."""
    version = platform.python_version()
    return {
        "type": "platform",
        "bom-ref": "python",
        "name": "python",
        "version": version,
        "purl": f"pkg:generic/python@{version}",
        "licenses": [{"license": {"id": "Python-2.0"}}],
        NEEDS: [],
    }


# --- Debian -------------------------------------------------------------------------------------------------


def packages() -> Iterator[Component]:
    """Debian's packages, as dpkg knows them."""
    form = "\\t".join(f"${{{field}}}" for field in DPKG_FIELDS) + "\\n"
    listed = subprocess.run(
        ["dpkg-query", "--show", f"--showformat={form}"], check=True, capture_output=True, text=True
    )
    system = platform.freedesktop_os_release()
    release = f"{system['ID']}-{system['VERSION_ID']}"
    for line in listed.stdout.splitlines():
        status, name, version, architecture, maintainer, *needs = line.split("\t")
        if status != "installed":
            continue
        licences = debian_licences(COPYRIGHTS / name / "copyright")
        where = f"arch={architecture}&distro={release}"
        yield {
            "type": "library",
            "bom-ref": f"deb/{name}",
            "supplier": {"name": maintainer},
            "name": name,
            "version": version,
            "purl": f"pkg:deb/{system['ID']}/{quote(name)}@{quote(version)}?{where}",
            "licenses": [{"license": {"name": licence}} for licence in licences],
            NEEDS: [f"deb/{needed}" for needed in names_in(", ".join(needs))],
        }


def names_in(relation: str) -> list[str]:
    """The packages that a Depends field names, alternatives too."""
    return sorted(
        {part.strip().split(" ")[0].partition(":")[0] for part in re.split("[,|]", relation) if part.strip()}
    )


def debian_licences(copyright_file: Path) -> list[str]:
    """The short names in a copyright file, where it has the form that programs can read."""
    try:
        text = copyright_file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return sorted(set(re.findall(r"^License: *(\S.*?) *$", text, re.MULTILINE)))


# --- the bill -----------------------------------------------------------------------------------------------


def bill(components: Iterable[Component]) -> dict[str, Any]:
    """The document; what a component needs is kept where that is a component too."""
    unique = {component["bom-ref"]: component for component in components}
    needs = {ref: [needed for needed in unique[ref].pop(NEEDS) if needed in unique] for ref in sorted(unique)}
    subject = unique.pop(
        f"pypi/{SUBJECT}", {"type": "application", "bom-ref": f"pypi/{SUBJECT}", "name": SUBJECT}
    )
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**subject, "type": "application"}},
        "components": [unique[ref] for ref in sorted(unique)],
        "dependencies": [{"ref": ref, "dependsOn": sorted(needs[ref])} for ref in needs],
    }


def main() -> None:
    """Write the bill to standard output."""
    parser = argparse.ArgumentParser(
        description="A bill of materials (CycloneDX 1.6, JSON) of this Python and this system"
    )
    parser.add_argument(
        "--no-system", action="store_true", help="Python's distributions alone, without Debian's packages"
    )
    args = parser.parse_args()
    components = [interpreter(), *distributions(), *([] if args.no_system else packages())]
    json.dump(bill(components), sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
