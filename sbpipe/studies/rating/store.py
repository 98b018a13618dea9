"""The files of scores: the requested file, and in `FILE.parts/` the ratings of each finished model.

A part is a score file of the examples that one model rated. Files that were made in another way are refused,
never mixed in or replaced. It must not know how ratings are made.
"""

from pathlib import Path
from typing import Any

import numpy as np

from sbpipe.data.score_file import ScoreFile, read_scores, write_scores
from sbpipe.errors import ConfigError
from sbpipe.records import Floats
from sbpipe.studies.rating.ensembles import Rater

KEY = "--out"
"""The flag that names the file in errors, unless another key is given."""


class Store:
    """The files of one command: scores of this kind, of this data set, made by this recipe."""

    def __init__(
        self, out: Path, kind: str, fingerprint: str, recipe: dict[str, Any], *, key: str = KEY
    ) -> None:
        self._out = out
        self._folder = out.with_name(f"{out.name}.parts")
        self._kind = kind
        self._fingerprint = fingerprint
        self._recipe = recipe
        self._key = key

    def open(self) -> None:
        """Before anything is trained, refuse a path that cannot be written or holds something else."""
        if self._out.is_dir():
            raise ConfigError(
                self._key, str(self._out), "is a folder", "Name a file, for instance scores.npz in it"
            )
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None
        # An existing file is overwritten only if it was made in the same way.
        if self._out.exists():
            self._read(self._out)

    def find(self, rater: Rater) -> Floats | None:
        """The ratings of a finished model; None if it is not finished."""
        path = self._path(rater)
        if not path.exists():
            return None
        file = self._read(path)
        if file.made.get("seed") != rater.seed or len(file.scores) != len(rater.rated_ids):
            raise self._otherwise(path, "by another model than this command would train")
        return file.scores

    def keep(self, rater: Rater, rating: Floats) -> None:
        """Write the ratings of a finished model."""
        self._write(self._path(rater), rating, {"seed": rater.seed})

    def finish(self, scores: Floats, raters: list[Rater]) -> ScoreFile:
        """Write the scores."""
        return self._write(self._out, scores, {"seeds": [rater.seed for rater in raters]})

    def _path(self, rater: Rater) -> Path:
        return self._folder / f"{rater.name}.npz"

    def _read(self, path: Path) -> ScoreFile:
        file = read_scores(path, key=self._key)
        there = {"kind": file.kind, "data set": file.fingerprint} | {
            key: file.made.get(key) for key in self._recipe
        }
        here = {"kind": self._kind, "data set": self._fingerprint} | self._recipe
        differing = [key for key, value in here.items() if there[key] != value]
        if differing:
            key = differing[0]
            raise self._otherwise(path, f"with {key} = {there[key]!r}, and here it is {here[key]!r}")
        return file

    def _write(self, path: Path, scores: Floats, made: dict[str, Any]) -> ScoreFile:
        file = ScoreFile(self._kind, self._fingerprint, np.asarray(scores, np.float32), self._recipe | made)
        try:
            write_scores(path, file)
        except OSError as error:
            raise self._unwritable(error) from None
        return file

    def _otherwise(self, path: Path, how: str) -> ConfigError:
        return ConfigError(
            self._key,
            str(self._out),
            f"{path} was made {how}",
            f"Name another file, or remove it and {self._folder}",
        )

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(
            self._key, str(self._out), f"cannot be written ({error.strerror or error})", "Name another place"
        )
