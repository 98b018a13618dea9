"""Every experiment by name, in the order they are listed. One more is a file beside this one and a line
here.
"""

import difflib
from collections.abc import Sequence

from sbpipe.errors import ConfigError
from sbpipe.studies.reproduce.architectures import FIG16
from sbpipe.studies.reproduce.asymmetry import FIG18
from sbpipe.studies.reproduce.diet import DIET
from sbpipe.studies.reproduce.dropping import DROPPING
from sbpipe.studies.reproduce.experiment import Experiment
from sbpipe.studies.reproduce.noise import FIG12
from sbpipe.studies.reproduce.overlap import OVERLAP
from sbpipe.studies.reproduce.reuse import FIG11, PREDICTED
from sbpipe.studies.reproduce.selectivity import FIG13
from sbpipe.studies.reproduce.similarity import FIG5
from sbpipe.studies.reproduce.speed import FIG14, FIG17, STATIC, TABLE1

ALL = "all"
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        FIG5,
        FIG18,
        TABLE1,
        FIG11,
        PREDICTED,
        FIG12,
        FIG13,
        FIG14,
        FIG16,
        FIG17,
        STATIC,
        DROPPING,
        DIET,
        OVERLAP,
    )
}


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
