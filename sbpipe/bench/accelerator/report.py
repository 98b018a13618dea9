"""All checks in turn, each in a process of its own; one file to send, and the same as a page.

The file says nothing of who measured or where: paths, the names of user and host are taken out of every text.
"""

import getpass
import json
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from sbpipe.bench.accelerator.check import QUICK, WHOLE
from sbpipe.bench.accelerator.checks import QUESTIONS
from sbpipe.bench.accelerator.child import FAILED, answer
from sbpipe.bench.rows import cells_table
from sbpipe.errors import ConfigError, DeviceError
from sbpipe.files import write_atomically
from sbpipe.version import __version__

FORMAT = 1
DEADLINE_S = 900.0
"""For one check: far more than any takes."""
OUT = "sbpipe-accelerator.json"

Report: TypeAlias = dict[str, Any]
Ask: TypeAlias = Callable[[str, bool], dict[str, Any]]
"""From the name of a check, and whether it shall be quick, to its answer."""


def chosen(only: Sequence[str]) -> list[str]:
    """The checks whose names hold one of these words; all without."""
    names = [name for name in QUESTIONS if not only or any(word in name for word in only)]
    if not names:
        raise ConfigError(
            "--only", " ".join(only), "no check is called so", f"There are {', '.join(QUESTIONS)}"
        )
    return names


def check_place(out: Path) -> None:
    """A file that is there is not lost, and one that cannot be written is told before all is measured."""
    if out.exists():
        raise ConfigError("--out", str(out), "is there already", "Name another file, or move it away")
    try:
        write_atomically(out, "")
        out.unlink()
    except OSError as error:
        raise ConfigError(
            "--out", str(out), f"cannot be written ({error.strerror})", "Name another"
        ) from None


def refuse_without() -> None:
    """Nothing can be told without an accelerator."""
    from sbpipe.machine import devices

    if not devices.accelerators():
        raise DeviceError(
            "sbpipe bench accelerator: PyTorch sees no accelerator on this machine. `sbpipe doctor` says "
            "what is here; the other benches measure the CPU"
        )


def gather(names: Sequence[str], *, is_quick: bool, ask: Ask) -> Report:
    """Ask every check, and say on the way which one it is."""
    found = []
    for name in names:
        sys.stderr.write(f"measuring {name}: {QUESTIONS[name]} ...\n")
        found.append({"check": name, "question": QUESTIONS[name], **ask(name, is_quick)})
    report = {
        "made_by": "sbpipe bench accelerator",
        "format": FORMAT,
        "size": asdict(QUICK if is_quick else WHOLE),
        "versions": versions(),
        "checks": found,
    }
    return dict(without_names(report))


def in_a_process(name: str, is_quick: bool) -> dict[str, Any]:
    """The answer of a check that is given a process; how it ended, where it gave none."""
    how = "quick" if is_quick else "whole"
    command = [sys.executable, "-m", "sbpipe.bench.accelerator.child", name, how]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        return _lost(f"it gave no answer in {DEADLINE_S:.0f} s")
    with suppress(ValueError, IndexError):
        return dict(json.loads(done.stdout.splitlines()[-1]))
    said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return _lost(f"its process ended with code {done.returncode}: {(said or ['it said nothing'])[-1]}")


def in_this_process(name: str, is_quick: bool) -> dict[str, Any]:
    """The same without one, for a device that cannot be broken."""
    return answer(name, QUICK if is_quick else WHOLE)


def _lost(reason: str) -> dict[str, Any]:
    return {"outcome": FAILED, "reason": reason, "seconds": None, "facts": []}


def versions() -> dict[str, str | None]:
    """Of what computes."""
    import torch

    return {
        "sbpipe": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": str(torch.backends.cudnn.version()) if torch.backends.cudnn.is_available() else None,  # type: ignore[no-untyped-call]
    }


# --- what must not be told ------------------------------------------------------------------------

_PATH = re.compile(r"(?:(?<=^)|(?<=[\s'\"(=:,]))~?/[\w.+@~-]+(?:/[\w.+@~-]*)*")


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    """The names of this user and this host."""
    names = {socket.gethostname(), socket.gethostname().partition(".")[0], Path.home().name}
    with suppress(OSError, KeyError):
        names.add(getpass.getuser())
    # Short ones, and those of every container, are words that errors are made of.
    return tuple(sorted((name for name in names if len(name) > 2 and name != "root"), key=len, reverse=True))


def without_names(value: Any) -> Any:
    """The same with every path, and the names of user and host, taken out of its texts."""
    if isinstance(value, dict):
        return {key: without_names(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_names(inner) for inner in value]
    if not isinstance(value, str):
        return value
    text = _PATH.sub("(path)", value)
    for name in _names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "(name)", text)
    return text


# --- the page -------------------------------------------------------------------------------------


def page(report: Report) -> str:
    """The report for people."""
    known = ", ".join(f"{name} {text}" for name, text in report["versions"].items() if text)
    lines = [known]
    for check in report["checks"]:
        lines += ["", f"{check['check']}: {check['question']}?"]
        if check["outcome"] != "measured":
            lines.append(f"  {check['outcome']}: {check['reason']}")
        cells = [("  " + fact["what"], _shown(fact), fact["note"]) for fact in check["facts"]]
        lines += cells_table(cells).splitlines() if cells else []
    return "\n".join([*lines, "", _ending(report)]) + "\n"


def _shown(fact: dict[str, Any]) -> str:
    value = fact["value"]
    if value is None:
        return "not measured"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        value = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{value} {fact['unit']}".rstrip()


def _ending(report: Report) -> str:
    count = {"measured": 0, "not here": 0, FAILED: 0}
    for check in report["checks"]:
        count[check["outcome"]] += 1
    facts = [fact for check in report["checks"] for fact in check["facts"]]
    broken = sum(_is_broken(fact) for fact in facts)
    gaps = sum(fact["value"] is None for fact in facts) - broken
    return (
        f"{count['measured']} checks measured, "
        f"{count['not here']} not possible here, {count[FAILED]} failed. "
        f"Of the facts of those measured, {gaps} are not to be had here and {broken} failed."
    )


def _is_broken(fact: dict[str, Any]) -> bool:
    return bool(fact["note"].startswith("failed: "))


def has_failed(report: Report) -> bool:
    """Whether a check, or a part of one, failed where it should have measured."""
    return any(
        check["outcome"] == FAILED or any(map(_is_broken, check["facts"])) for check in report["checks"]
    )


def save(report: Report, out: Path) -> None:
    """Write the file whole."""
    write_atomically(out, json.dumps(report, indent=2) + "\n")
