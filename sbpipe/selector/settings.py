"""The settings that a trainer sends, as far as they apply here: checked, and with this side's own device,
link and paths in place of the trainer's. Pure.
"""

import json
from collections.abc import Mapping
from typing import Any

from sbpipe.config import Config, flatten, from_dict, is_local, resolve, to_dict
from sbpipe.errors import ConfigError, PeerRejected
from sbpipe.link.messages import Welcome

OWN_KEYS = ("selector.allow", "selector.events", "data.download")
"""Never taken from a trainer: what is permitted, and what makes this process write files."""


def settings_in(welcome: Welcome) -> Config:
    """The trainer's settings, checked as if a user had given them."""
    try:
        tables = json.loads(welcome.config)
        if not isinstance(tables, dict):
            raise ValueError("no table of settings")
        return from_dict(tables)
    except (ValueError, RecursionError, ConfigError) as error:
        raise PeerRejected(f"the settings that the trainer sent cannot be used here: {error}") from None


def merge(theirs: Config, given: Mapping[str, Any]) -> Config:
    """The trainer's settings with this side's device, link and paths; all other given settings must agree."""
    ours, checked = flatten(to_dict(theirs)), flatten(to_dict(resolve(given)))
    ours |= {key: checked[key] for key in OWN_KEYS}
    for key in given:
        value = checked[key]
        if is_local(key):
            ours[key] = value
        elif ours[key] != value:
            raise PeerRejected(
                f"{key}: the trainer has {ours[key]!r}, this selector was given {value!r}. Leave it out, or "
                "start both alike"
            )
    return resolve(ours)
