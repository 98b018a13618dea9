"""What a trainer may make this selector run and read: only what the selector's own user named.

A welcome comes over a wire, and its settings name code (`module:function`) and files. Code of sbpipe itself
needs no permission. Anything else must be named in this selector's settings, in `selector.allow`, or in the
config.json of the user's own run directory. It must not know what is done with what it permits.
"""

import json
import os
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbpipe.config import Config, flatten, known_keys, to_dict
from sbpipe.config.plugins import is_plugin
from sbpipe.errors import ConfigError
from sbpipe.runs.names.files import CONFIG

ALLOW = "SBPIPE_ALLOW"
"""In the environment: what `selector.allow` lists, separated by commas."""


@dataclass(frozen=True)
class Permission:
    """`allowed` are names and paths, `given` the settings of this process, `run_dir` is where it connects."""

    allowed: frozenset[str] = frozenset()
    given: Mapping[str, Any] = field(default_factory=dict)
    run_dir: Path | None = None

    def check(self, config: Config) -> None:
        """Refuse settings that name code or files which the user of this selector did not name."""
        wanted, own = flatten(to_dict(config)), self._own_settings()
        for key, known in known_keys().items():
            reach, value = known.metadata["reaches"], wanted[key]
            if reach == "code" and is_plugin(value) and value not in self.allowed:
                _same(key, wanted, own, "run", value)
                # Options are arguments of that function: only those that its user wrote are allowed.
                options = key.replace(".name", ".options")
                if wanted.get(options):
                    _same(options, wanted, own, "run code with", value)
            elif reach == "files" and value and not self._is_inside(value):
                _same(key, wanted, own, "read", value)

    def _own_settings(self) -> dict[str, Any]:
        """What this selector's user wrote: in the run directory, if it is the user's own, and for this
        process.
        """
        return {**(written_by_us(self.run_dir) if self.run_dir else {}), **self.given}

    def _is_inside(self, path: str) -> bool:
        """Whether a path is one of those allowed, or below one; links are followed first."""
        # An empty name would stand for the working directory.
        return any(_real(path).is_relative_to(_real(allowed)) for allowed in self.allowed if allowed)


def written_by_us(run_dir: Path) -> dict[str, Any]:
    """The settings in a run directory; {} unless folder and file are this user's, and not
    writable by others.
    """
    try:
        folder = run_dir.stat()
        with (run_dir / CONFIG).open("rb") as file:
            is_ours = all(
                status.st_uid == os.geteuid() and not status.st_mode & stat.S_IWOTH
                for status in (folder, os.fstat(file.fileno()))
            )
            settings = json.loads(file.read()) if is_ours else {}
        return flatten(settings)
    # Missing, truncated or not ours: then it permits nothing.
    except (OSError, ValueError, RecursionError, AttributeError, ConfigError):
        return {}


def _same(key: str, wanted: Mapping[str, Any], own: Mapping[str, Any], verb: str, name: str) -> None:
    """Refuse a setting whose value this selector's user did not write."""
    if key in own and own[key] == wanted[key]:
        return
    reason = f"the trainer asks this selector to {verb} it, and its own user has not named it"
    way_out = (
        f"If you trust that trainer, start the selector with --allow {shlex.quote(name)} (or {ALLOW}), with "
        "the trainer's own settings file, or with --connect RUN_DIR of a run of yours"
    )
    raise ConfigError(key, wanted[key], reason, way_out)


def _real(path: str) -> Path:
    return Path(os.path.realpath(os.path.expanduser(path)))
