"""Compiles the simulated devices, once for each version of their source and of torch."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

SOURCES = Path(__file__).parent / "csrc"
CACHE = Path(__file__).resolve().parents[2] / "build" / "simulated"
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-w", "-DNDEBUG")


def compiler() -> str | None:
    """The C++ compiler of this machine, if it has one."""
    return shutil.which(os.environ.get("CXX", "g++"))


def is_possible() -> bool:
    """Whether the devices are compiled, or can be."""
    return _path().exists() or compiler() is not None


def library() -> Path | None:
    """The compiled devices; None where they are not compiled yet and there is no compiler."""
    path = _path()
    if path.exists():
        return path
    with_compiler = compiler()
    return None if with_compiler is None else _compiled(with_compiler, path)


def _path() -> Path:
    digest = hashlib.sha256(f"{torch.__version__} {sys.platform} {FLAGS}".encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    return CACHE / f"sim-{digest.hexdigest()[:16]}.so"


def _compiled(with_compiler: str, path: Path) -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two workers of one test run ask at the same time
        if not path.exists():
            _compile(with_compiler, path)
    return path


def _compile(with_compiler: str, path: Path) -> None:
    home = Path(torch.__file__).parent
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    include = ["-isystem", str(home / "include")]
    objects = []
    running = []
    for source in sorted(SOURCES.glob("*.cpp")):
        objects.append(str(path.with_suffix(f".{os.getpid()}.{source.stem}.o")))
        command = [with_compiler, *FLAGS, abi, *include, "-c", str(source), "-o", objects[-1]]
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    said = [process.communicate()[1] for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError("the simulated devices do not compile:\n" + "\n".join(said))
    partial = str(path.with_suffix(f".{os.getpid()}.so"))
    libraries = [f"-L{home / 'lib'}", "-lc10", "-ltorch_cpu"]
    subprocess.run([with_compiler, "-shared", "-o", partial, *objects, *libraries], check=True)
    os.replace(partial, path)
    for name in objects:
        os.unlink(name)
