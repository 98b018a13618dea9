"""Every error that sbpipe raises on purpose. It knows neither who raises nor who reports them.

    SbpipeError
    ├── UserError            exit 2   a mistake the user can fix; shown without a traceback
    │   ├── ConfigError               a key, a value, why it is wrong, what to do
    │   ├── DataError                 a data set that is missing, unreadable, empty or inconsistent
    │   ├── ModelError                a model or loss that cannot be built or answers in the wrong shape
    │   ├── DeviceError               a device that is not there, or has too little memory
    │   ├── RunDirError               a run directory that is in use, not empty, or not writable
    │   └── MissingExtra              an optional library that is not installed, and the extra that brings it
    ├── PeerError            exit 3   the other side of the wire
    │   ├── PeerLost                  which peer, silent for how long
    │   └── PeerRejected              both sides of the disagreement
    ├── RankLost             exit 6   another rank of the trainer has ended or hangs; a restart goes on
    ├── ResultsError                  trained, but the run directory did not take all that a run must leave
    │   ├── ResultsElsewhere exit 4   it lies in a spare folder, and the message says where
    │   └── ResultsLost      exit 5   some of it could be written nowhere, and the message says what
    └── FrameError           dropped  a message that is not ours: corrupt, hostile or outdated

Anything else that escapes is a bug and shows its traceback.
"""

from typing import Any

from sbpipe.text import visible


class SbpipeError(Exception):
    """The root; `exit_code` is the process's exit code if the error reaches the top."""

    exit_code = 1


class UserError(SbpipeError):
    """A mistake the user can fix."""

    exit_code = 2


class ConfigError(UserError):
    """A setting that cannot be used."""

    def __init__(self, key: str, given: object, reason: str, way_out: str) -> None:
        super().__init__(f"{key} = {_shown(given)}: {reason}. {way_out}")
        self.key = key


class DataError(UserError):
    """A data set that cannot be trained on."""


class ModelError(UserError):
    """A model or a loss that cannot be used."""


class DeviceError(UserError):
    """A device that cannot be used."""


class RunDirError(UserError):
    """A run directory that cannot be used."""


class MissingExtra(UserError):
    """An optional library is not installed."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} need {library}, which is not installed. Install it with: pip install "
            f"'sbpipe[{extra}]'"
        )


class PeerError(SbpipeError):
    """Something is wrong with the other side of the wire; its own words are cut to one line."""

    exit_code = 3

    def __init__(self, text: str) -> None:
        super().__init__(visible(text))


class PeerLost(PeerError):
    """A peer went silent, or never came."""


class PeerRejected(PeerError):
    """A peer disagrees about what is being trained."""


class RankLost(SbpipeError):
    """Another rank is gone, so all ranks must be restarted."""

    exit_code = 6


class ResultsError(SbpipeError):
    """A run has ended, but its final weights or its summary are not in its run directory."""

    def __init__(self, message: str, summary: dict[str, Any]) -> None:
        """`summary` holds the numbers of the run, which may not be stored anywhere else."""
        super().__init__(message)
        self.summary = summary


class ResultsElsewhere(ResultsError):
    """They are in the spare folder."""

    exit_code = 4


class ResultsLost(ResultsError):
    """Some of them could not be written anywhere."""

    exit_code = 5


class FrameError(SbpipeError):
    """A message that cannot be trusted; the receiver drops and counts it."""


_SHOWN = 300


def _shown(given: object) -> str:
    """Any value as an error shows it: in one line, cut if it is long."""
    try:
        text = repr(given)
    # Python refuses to print integers of more than some thousand digits.
    except (ValueError, RecursionError):
        return f"a {type(given).__name__} too large to show"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} letters)"
