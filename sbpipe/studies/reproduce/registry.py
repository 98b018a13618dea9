"""Every experiment by name, in the order of experiments.toml, which describes each in words.

A new experiment needs a table there, a file in experiments/ and a line here.
"""

import difflib
import tomllib
from collections.abc import Sequence
from importlib import resources

from sbpipe.errors import ConfigError
from sbpipe.studies.reproduce.experiment import Comparison, Experiment, Measurement
from sbpipe.studies.reproduce.experiments.architectures import FIG16
from sbpipe.studies.reproduce.experiments.asymmetry import FIG18
from sbpipe.studies.reproduce.experiments.diet import DIET
from sbpipe.studies.reproduce.experiments.dropping import DROPPING
from sbpipe.studies.reproduce.experiments.overlap import OVERLAP
from sbpipe.studies.reproduce.experiments.score_reuse import FIG11, PREDICTED
from sbpipe.studies.reproduce.experiments.selectivity import FIG13
from sbpipe.studies.reproduce.experiments.similarity import FIG5
from sbpipe.studies.reproduce.experiments.speed import FIG14, FIG17, STATIC, TABLE1
from sbpipe.studies.reproduce.experiments.wrong_labels import FIG12

ALL = "all"
_HOW: dict[str, Comparison | Measurement] = {
    "fig5": FIG5,
    "fig18": FIG18,
    "table1": TABLE1,
    "fig11": FIG11,
    "predicted": PREDICTED,
    "fig12": FIG12,
    "fig13": FIG13,
    "fig14": FIG14,
    "fig16": FIG16,
    "fig17": FIG17,
    "static": STATIC,
    "dropping": DROPPING,
    "diet": DIET,
    "overlap": OVERLAP,
}
_WORDS = tomllib.loads(
    resources.files("sbpipe.studies.reproduce").joinpath("experiments.toml").read_text(encoding="utf-8")
)
EXPERIMENTS = {name: Experiment(name, _HOW[name], **words) for name, words in _WORDS.items()}


def named(names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names, each once; `all` names every one."""
    known = [*EXPERIMENTS, ALL]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ConfigError(
                "experiment",
                name,
                f"there is none of this name, the nearest is {near}",
                f"Name some of {', '.join(known)}",
            )
    wanted = list(EXPERIMENTS) if ALL in names else list(dict.fromkeys(names))
    return [EXPERIMENTS[name] for name in wanted]
