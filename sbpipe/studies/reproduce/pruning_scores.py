"""The score files that a comparison's arms prune by, each made once, before the runs."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sbpipe.config import Config, resolve
from sbpipe.show.terminal import duration
from sbpipe.studies.plan import Plan
from sbpipe.studies.reproduce.experiment import Scores

KEY = "data.prune"
SEED = 0
"""The seed of the scoring models: one file serves the runs of all seeds."""


def files_of(plan: Plan) -> dict[str, Config]:
    """Every score file that cells prune by, with the settings of its first cell except for the seed."""
    found: dict[str, Config] = {}
    for config in (resolve(cell.settings) for cell in plan.cells):
        if config.data.prune and config.data.prune_share:
            found.setdefault(config.data.prune, replace(config, seed=SEED))
    return found


def prepare(scores: Scores, plan: Plan, say: Callable[[str], None]) -> list[str]:
    """Train missing models in this process, on all its cores; returns facts on the files for the reader."""
    from sbpipe.studies.rating import ProgressLine, make_scores

    facts = []
    for given, config in files_of(plan).items():
        epochs, began = scores.share * config.train.epochs, time.monotonic()
        how = f"{scores.kind} of {scores.models} models trained for {epochs:g} epochs"
        say(f"scores: {how}, into {given}")
        path = Path(given).expanduser()
        make_scores(
            scores.kind,
            config,
            path,
            models=scores.models,
            epochs=epochs,
            tell=ProgressLine(scores.kind),
            key=KEY,
        )
        say(f"scores: made in {duration(time.monotonic() - began)}")
        facts.append(f"pruned by {given}: {how}, which no arm's time includes")
    return facts
