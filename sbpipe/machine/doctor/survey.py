"""Gathers all facts. It must also work if a library is broken, so it catches errors of every import."""

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
    is_broken = any(item.problem for item in libraries if item.name in NEEDED)
    return Facts(
        cpu=host.cpu(),
        memory=host.memory(),
        sockets=host.sockets_folder(),
        libraries=(Library("python", platform.python_version()), Library("sbpipe", __version__), *libraries),
        runs=host.runs_folder(config.mode),
        has_nvidia_driver=any(Path(path).exists() for path in _NVIDIA),
        **({} if is_broken else _look_inside(config)),
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
    # It includes the build (+cu128), which the metadata leaves out.
    return Library(name, str(getattr(module, "__version__", version)))


def _look_inside(config: Config) -> dict[str, Any]:
    """The facts from torch and our own rooms; drivers may fail, and torch may warn about them."""
    import torch

    from sbpipe.machine import devices
    from sbpipe.machine.doctor import choice

    train = config.train
    facts: dict[str, Any] = {"torch_cuda": torch.version.cuda, "shared_memory": choice.shared_memory()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            facts["accelerators"] = choice.accelerators()
            planned = devices.plan(train.device, config.selector.device)
            facts["trainer"] = choice.role("trainer", planned[0], train.device, train.threads)
            facts["selector"] = choice.selector(config, *planned)
        except (OSError, RuntimeError) as error:
            facts["device_problem"] = _first_line(error)
    texts = [str(item.message).splitlines()[0] for item in caught if issubclass(item.category, UserWarning)]
    return facts | {"torch_warnings": tuple(dict.fromkeys(texts))}


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
