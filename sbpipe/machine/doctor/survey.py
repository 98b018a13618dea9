"""Gathers all facts. A doctor must also speak where a library is broken: what needs one is imported after it
was seen to import.
"""

import importlib
import platform
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

from sbpipe import __version__
from sbpipe.config import Config
from sbpipe.machine.doctor import host
from sbpipe.machine.doctor.facts import Facts, Library

NEEDED = ("torch", "numpy", "pyzmq", "msgpack")
_MODULES = {"pyzmq": "zmq"}
_BROKEN = (ImportError, OSError, RuntimeError, AttributeError, ValueError, TypeError)
_NVIDIA = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/usr/lib/wsl/lib/libcuda.so.1")


def look() -> Facts:
    """All facts of this machine, for a run without a config."""
    config = Config()
    libraries = tuple(library(name) for name in (*NEEDED, "torchvision"))
    broken = {item.name for item in libraries if item.problem}
    zmq: Any = None if "pyzmq" in broken else importlib.import_module("zmq")
    return Facts(
        cpu=host.cpu(),
        memory=host.memory(),
        ports=host.ports(),
        libraries=(Library("python", platform.python_version()), Library("sbpipe", __version__), *libraries),
        libzmq=zmq.zmq_version() if zmq else "",
        has_curve=bool(zmq and zmq.has("curve")),
        runs=host.runs_folder(config.mode),
        has_nvidia_driver=any(Path(path).exists() for path in _NVIDIA),
        **({} if broken.intersection(NEEDED) else _look_inside(config)),
    )


def library(name: str) -> Library:
    """The version of a library, and the error of importing it if there is one."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Library(name, "", "not installed")
    try:
        module = importlib.import_module(_MODULES.get(name, name))
    except _BROKEN as error:
        return Library(name, version, _first_line(error))
    return Library(
        name, str(getattr(module, "__version__", version))
    )  # with the build, which metadata leaves out


def _look_inside(config: Config) -> dict[str, Any]:
    """The facts that only torch and our own rooms can tell; drivers may fail, and torch may warn of them."""
    import torch

    from sbpipe.machine.doctor import rehearsal

    shared = rehearsal.shared_memory()
    facts: dict[str, Any] = {
        "torch_cuda": torch.version.cuda,
        "shared_memory": shared,
        "cache": rehearsal.cache(),
    }
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            facts["accelerators"] = rehearsal.accelerators()
            facts["choice"] = rehearsal.choose(config, shared)
        except (OSError, RuntimeError) as error:
            facts["choice_problem"] = _first_line(error)
    texts = [
        str(warning.message).splitlines()[0] for warning in said if issubclass(warning.category, UserWarning)
    ]
    return facts | {"torch_warnings": tuple(dict.fromkeys(texts))}


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
