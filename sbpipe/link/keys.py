"""The CURVE keys of a run in two files, one for each side; who has neither cannot connect. Knows no zmq.

    trainer.key    the trainer's own pair and the selectors' public key
    selector.key   the selectors' own pair and the trainer's public key: the only file to copy elsewhere

Each is JSON: {"role", "public", "secret", "peer"}, keys in Z85; mode 0600 from the start, never overwritten.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any

from sbpipe.errors import ConfigError
from sbpipe.link.binding import Keys
from sbpipe.link.sockets import new_key_pair, public_key_of

ROLES = ("trainer", "selector")
_KEY = "link.keys"
_Z85 = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#")
_MAX_FILE_BYTES = 4096


def make_keys(folder: Path) -> tuple[Path, Path]:
    """Write trainer.key and selector.key; refuses to write over either."""
    paths = (folder / "trainer.key", folder / "selector.key")
    taken = [path.name for path in paths if path.exists()]
    if taken:
        raise ConfigError(
            _KEY,
            str(folder),
            f"{' and '.join(taken)} is there already",
            "Choose another folder, or remove the old keys first",
        )
    pairs = {role: new_key_pair() for role in ROLES}
    texts = [
        _to_json(role, *pairs[role], pairs[other][0])
        for role, other in zip(ROLES, reversed(ROLES), strict=True)
    ]
    written: list[Path] = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, text in zip(paths, texts, strict=True):
            # Private from the first byte: a chmod afterwards would leave a moment to read it in.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            written.append(path)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise ConfigError(
            _KEY,
            str(folder),
            f"keys cannot be written ({error.strerror})",
            "Choose a folder that you may write to",
        ) from None
    return paths


def load_keys(folder: Path, role: str) -> Keys:
    """The keys of one side; refuses a file that others may read, or that `make_keys` does not write."""
    path = folder / f"{role}.key"
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            _KEY,
            str(folder),
            f"{path.name} cannot be read ({error.strerror})",
            "Make keys with `sbpipe keys`",
        ) from None
    if mode & 0o077:
        raise ConfigError(
            _KEY,
            str(folder),
            f"{path.name} has mode {mode:04o}, so others may read it",
            f"Run: chmod 600 {path}",
        )
    return _from_json(folder, role, content)


def _to_json(role: str, public: str, secret: str, peer: str) -> str:
    return json.dumps({"role": role, "public": public, "secret": secret, "peer": peer}, indent=2) + "\n"


def _from_json(folder: Path, role: str, content: bytes) -> Keys:
    malformed = ConfigError(
        _KEY,
        str(folder),
        f"{role}.key is not a key file of the {role}",
        "Make new keys with `sbpipe keys` in another folder",
    )
    try:
        table: Any = json.loads(content) if len(content) <= _MAX_FILE_BYTES else None
    except (ValueError, RecursionError):
        raise malformed from None
    if (
        not isinstance(table, dict)
        or table.keys() != {"role", "public", "secret", "peer"}
        or table.pop("role") != role
    ):
        raise malformed
    if not all(
        isinstance(value, str) and len(value) == 40 and set(value) <= _Z85 for value in table.values()
    ):
        raise malformed
    # Keys mixed up by hand would only fail later, in a handshake that gives no reason.
    try:
        is_pair = public_key_of(table["secret"]) == table["public"]
    except ValueError:
        raise malformed from None
    if not is_pair:
        raise malformed
    return Keys(**table)
