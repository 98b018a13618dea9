"""The CURVE keys of a trainer and its selectors, in files; without one a selector cannot connect. Knows no
zmq.

    trainer.key         the trainer's own pair and the first selector's public key
    selector.key        the first selector's own pair and the trainer's public key
    NAME.key            the same for a further selector: the only file that its host needs
    allowed/NAME.pub    public keys of the accepted selectors (see `keyring`)

A .key file is JSON: {"role", "public", "secret", "peer"}, keys in Z85. It has mode 0600 from the start, and
is overwritten only to rotate the trainer's own pair.
"""

import json
import logging
import os
import stat
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sbpipe.errors import ConfigError
from sbpipe.files import write_atomically
from sbpipe.link.binding import Keys
from sbpipe.link.keyring import ALLOWED, FIRST, NAME, SUFFIX, Keyring
from sbpipe.link.kinds import Z85
from sbpipe.link.sockets import new_key_pair, public_key_of

log = logging.getLogger("sbpipe.link")

_KEY = "link.keys"
_TRAINER, _SELECTOR = "trainer", "selector"
_MAX_FILE_BYTES = 4096


def make_keys(folder: Path) -> tuple[Path, Path]:
    """Write trainer.key, selector.key and the permission of the latter; refuses to overwrite anything."""
    paths = (folder / f"{_TRAINER}.key", folder / f"{FIRST}.key")
    taken = [path.name for path in paths if path.exists()]
    if taken:
        raise ConfigError(
            _KEY,
            str(folder),
            f"{' and '.join(taken)} is there already",
            "Choose another folder, or remove the old keys first",
        )
    trainer, selector = new_keys()
    _write(
        folder,
        {paths[0]: _to_json(_TRAINER, trainer), paths[1]: _to_json(_SELECTOR, selector)},
        {FIRST: selector.public},
    )
    return paths


def new_keys() -> tuple[Keys, Keys]:
    """New keys of a trainer and of one selector."""
    (trainer, trainer_secret), (selector, selector_secret) = new_key_pair(), new_key_pair()
    return Keys(trainer, trainer_secret, selector), Keys(selector, selector_secret, trainer)


def selector_of(trainer: Keys) -> Keys:
    """New keys of a further selector of this trainer."""
    public, secret = new_key_pair()
    return Keys(public, secret, trainer.public)


def write_selector_keys(path: Path, keys: Keys) -> None:
    """Write a selector's keys to a file that only this user can read."""
    write_atomically(path, _to_json(_SELECTOR, keys), mode=0o600)


def add_selector(folder: Path, name: str) -> Path:
    """Make and accept the key of a further selector; running trainers notice."""
    trainer = load_keys(folder, _TRAINER)
    path = folder / f"{name}.key"
    if not NAME.fullmatch(name) or name == _TRAINER:
        raise ConfigError(
            "NAME", name, "must be 1 to 64 of A-Z a-z 0-9 . _ - and not trainer", "Choose another name"
        )
    if path.exists() or name in allowed_names(folder):
        raise ConfigError("NAME", name, f"{path} is there already", "Revoke it first, or choose another name")
    keys, kept = selector_of(trainer), _permissions(folder, trainer)
    _write(folder, {path: _to_json(_SELECTOR, keys)}, kept | {name: keys.public})
    return path


def revoke_selector(folder: Path, name: str) -> None:
    """Revoke a key; running trainers cut its connections. Its key file here is removed too."""
    kept = _permissions(folder, load_keys(folder, _TRAINER))
    if name not in kept:
        raise ConfigError(
            "NAME", name, f"is not let in by {folder}", f"Known: {', '.join(sorted(kept)) or 'none'}"
        )
    # Written first if there was none: without the folder trainer.key would let the first selector in.
    _write(folder, {}, kept)
    (folder / ALLOWED / f"{name}{SUFFIX}").unlink()
    (folder / f"{name}.key").unlink(missing_ok=True)


def rotate_trainer(folder: Path) -> list[Path]:
    """Give the trainer a new pair, which running trainers take over; returns the selectors' files that name
    it.
    """
    before = load_keys(folder, _TRAINER)
    public, secret = new_key_pair()
    renewed: dict[Path, str] = {}
    for path in sorted(folder.glob("*.key")):
        if path.stem != _TRAINER and (keys := load_keys(path, _SELECTOR)).peer == before.public:
            renewed[path] = _to_json(_SELECTOR, replace(keys, peer=public))
    try:
        # The trainer's file last: whoever sees it changed finds the others changed.
        trainer = _to_json(_TRAINER, Keys(public, secret, before.peer))
        for path, text in [*renewed.items(), (folder / f"{_TRAINER}.key", trainer)]:
            write_atomically(path, text, mode=0o600)
    except OSError as error:
        raise ConfigError(
            _KEY,
            str(folder),
            f"keys cannot be written ({error.strerror})",
            "Check the folder and rotate once more",
        ) from None
    return list(renewed)


class TrainerKey:
    """The trainer's own pair in a folder or file, read again when that changes."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._path = place if place.suffix == ".key" else place / f"{_TRAINER}.key"
        self._seen = self._state()
        self.keys = load_keys(place, _TRAINER)

    def refresh(self) -> Keys | None:
        """The new pair, if it has changed since the last call."""
        state = self._state()
        if state == self._seen:
            return None
        self._seen = state
        try:
            keys = load_keys(self._place, _TRAINER)
        except ConfigError as error:
            log.warning("the trainer goes on with the key it has: %s", error)
            return None
        if keys == self.keys:
            return None
        self.keys = keys
        return keys

    def _state(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        # The file is replaced as a whole, so a new one has another inode.
        return status.st_ino, status.st_mtime_ns


def allowed_names(folder: Path) -> list[str]:
    """The names of the accepted keys."""
    return sorted(_permissions(folder, load_keys(folder, _TRAINER)))


def _permissions(folder: Path, trainer: Keys) -> dict[str, str]:
    """Public keys by name."""
    return {name: public for public, name in Keyring(trainer, folder).allowed.items()}


def _write(folder: Path, texts: dict[Path, str], permissions: dict[str, str]) -> None:
    """Write key files that must be new, then missing permissions; either all key files or none."""
    written: list[Path] = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, text in texts.items():
            # Private from the first byte: with a later chmod others could read it in between.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            written.append(path)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(text)
        (folder / ALLOWED).mkdir(mode=0o700, exist_ok=True)
        for name, public in permissions.items():
            path = folder / ALLOWED / f"{name}{SUFFIX}"
            if not path.exists():
                write_atomically(path, f"{public}\n", mode=0o600)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise ConfigError(
            _KEY,
            str(folder),
            f"keys cannot be written ({error.strerror})",
            "Choose a folder that you may write to",
        ) from None


def load_keys(place: Path, role: str) -> Keys:
    """The keys of one side, from a folder or a file; refuses a file that others may read, or a
    malformed one.
    """
    path = place if place.suffix == ".key" else place / f"{role}.key"
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            _KEY,
            str(place),
            f"{path.name} cannot be read ({error.strerror})",
            "Make keys with `sbpipe keys`",
        ) from None
    if mode & 0o077:
        raise ConfigError(
            _KEY,
            str(place),
            f"{path.name} has mode {mode:04o}, so others may read it",
            f"Run: chmod 600 {path}",
        )
    return _from_json(path, role, content)


def _to_json(role: str, keys: Keys) -> str:
    return json.dumps({"role": role, **asdict(keys)}, indent=2) + "\n"


def _from_json(path: Path, role: str, content: bytes) -> Keys:
    malformed = ConfigError(
        _KEY,
        str(path.parent),
        f"{path.name} is not a key file of the {role}",
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
    if not all(isinstance(value, str) and Z85.fullmatch(value) for value in table.values()):
        raise malformed
    # Keys mixed up by hand would fail only later, in a handshake that gives no reason.
    try:
        is_pair = public_key_of(table["secret"]) == table["public"]
    except ValueError:
        raise malformed from None
    if not is_pair:
        raise malformed
    return Keys(**table)
