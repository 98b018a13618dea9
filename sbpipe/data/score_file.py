"""Score files: one number per training example, with its kind, its data set and how it was made.

An .npz of `scores` (float32, by example id) and `about` (JSON). It must not know who makes scores nor what
they are used for.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sbpipe.archives import read_npz
from sbpipe.errors import ConfigError
from sbpipe.files import atomic_file
from sbpipe.records import Floats

FORMAT = "sbpipe scores 1"
_MAKE = "Make one with `sbpipe score el2n --out FILE` or `sbpipe score irreducible --out FILE`"
# Raised on reading a file that is cut, no archive, or not ours.
_BROKEN = (ValueError, OSError, KeyError, TypeError, RecursionError)


@dataclass(frozen=True)
class ScoreFile:
    """The scores of examples 0 to N - 1, with their `kind`, and how they were `made`."""

    kind: str
    fingerprint: str
    scores: Floats
    made: dict[str, Any] = field(default_factory=dict)


def write_scores(path: Path, file: ScoreFile) -> None:
    """Write the file, whole or not at all; like every reader, it refuses scores that are not finite."""
    first = _first_not_finite(file.scores)
    if first is not None:
        raise ValueError(f"the score of example {first} is {file.scores[first]}")
    about = {"format": FORMAT, "kind": file.kind, "fingerprint": file.fingerprint, "made": file.made}
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {"scores": file.scores.astype(np.float32), "about": np.array(json.dumps(about))}
    with atomic_file(path) as out:
        np.savez(out, allow_pickle=False, **arrays)


def read_scores(given: str | Path, *, key: str, kind: str | None = None) -> ScoreFile:
    """The file that setting `key` names; ConfigError if it is missing, of another kind, or holds NaN."""
    path = Path(given).expanduser()
    if not path.exists():
        raise ConfigError(key, str(given), "there is no such file", _MAKE)
    try:
        file = _read(path)
    except _BROKEN as error:
        raise ConfigError(
            key, str(given), f"is not a score file, or not a whole one ({error})", _MAKE
        ) from None
    if kind is not None and file.kind != kind:
        raise ConfigError(
            key,
            str(given),
            f"holds scores of kind {file.kind!r}, not {kind!r}",
            f"Make it with `sbpipe score {kind}`",
        )
    first = _first_not_finite(file.scores)
    if first is not None:
        count = int((~np.isfinite(file.scores)).sum())
        reason = (
            f"the score of example {first} is {file.scores[first]}, and {count} of {len(file.scores)} "
            "are not finite"
        )
        raise ConfigError(
            key, str(given), reason, "Make the file again, with a lower optim.lr if training diverged"
        )
    return file


def check_scores(
    file: ScoreFile, given: str | Path, *, key: str, fingerprint: str, num_examples: int
) -> None:
    """Refuse a file of another data set, or without exactly one score for each training example."""
    if file.fingerprint != fingerprint:
        reason = (
            f"was made for another data set: the file's fingerprint is {file.fingerprint}, this data "
            f"set's {fingerprint}"
        )
        raise ConfigError(
            key,
            str(given),
            reason,
            "Use the settings [data] that it was made with, or make it again with these",
        )
    if len(file.scores) != num_examples:
        reason = f"holds {len(file.scores)} scores, the data set has {num_examples} training examples"
        raise ConfigError(key, str(given), reason, _MAKE)


def digest(scores: Floats) -> str:
    """A short hash of the scores, for two roles that must have the same."""
    return hashlib.blake2b(scores.astype("<f4").tobytes(), digest_size=8).hexdigest()


def _read(path: Path) -> ScoreFile:
    arrays = read_npz(path, ("scores", "about"))
    scores, about = arrays["scores"], json.loads(str(arrays["about"]))
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ValueError("its format is not known")
    if scores.ndim != 1 or scores.dtype.kind != "f":
        raise ValueError(f"scores are {scores.dtype} of shape {scores.shape}")
    return ScoreFile(
        str(about["kind"]), str(about["fingerprint"]), scores.astype(np.float32), dict(about["made"])
    )


def _first_not_finite(scores: Floats) -> int | None:
    is_finite = np.isfinite(scores)
    return None if is_finite.all() else int(np.argmin(is_finite))
