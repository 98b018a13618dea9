"""Makes a score file from settings, model by model; the same command again resumes after finished models.

It must not know how a model is trained, nor how files are laid out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sbpipe.config import Config, flatten
from sbpipe.data import Data, load_data
from sbpipe.data.score_file import ScoreFile
from sbpipe.machine import devices
from sbpipe.records import Floats
from sbpipe.studies.rating.ensembles import PLANS, Rater, joined
from sbpipe.studies.rating.fit import fit, measure_of, num_steps, rate
from sbpipe.studies.rating.meter import RATED, TRAINED, Meter, Tell
from sbpipe.studies.rating.store import KEY, Store


def make_scores(
    kind: str, config: Config, out: Path, *, models: int, epochs: float, tell: Tell, key: str = KEY
) -> ScoreFile:
    """Scores of the whole data set (unpruned), written to `out`, which the flag or setting `key` gives."""
    config = replace(
        # Not augmented, so that a score belongs to the example and not to one view of it.
        config,
        data=replace(config.data, prune="", prune_share=0.0),
        view=replace(config.view, score="clean"),
    )
    device = devices.resolve("train.device", devices.plan(config.train.device, config.selector.device)[0])
    devices.use(device)
    # Below, each model loads the data again, because views depend on its seed.
    with _loaded(config, config.seed, device) as data:
        fingerprint, num_examples = data.fingerprint, data.train.num_examples
    store = Store(out, kind, fingerprint, recipe_of(config, epochs), key=key)
    store.open()
    raters = PLANS[kind](models, num_examples, config.seed)
    ratings = {rater.name: rating for rater in raters if (rating := store.find(rater)) is not None}
    missing = [rater for rater in raters if rater.name not in ratings]
    meter = Meter(tell, models=len(raters), work=sum(_work(rater, config, epochs) for rater in missing))
    for rater in missing:
        meter.model = raters.index(rater) + 1
        with _loaded(config, rater.seed, device) as data:
            ratings[rater.name] = _rating(kind, config, data, rater, device, epochs, meter)
        # At once, so that a stop loses only the current model.
        store.keep(rater, ratings[rater.name])
    return store.finish(joined(raters, [ratings[rater.name] for rater in raters], num_examples), raters)


def recipe_of(config: Config, epochs: float) -> dict[str, Any]:
    """All settings that decide a model's scores, except the data set and the models' seeds."""
    sections = {
        name: asdict(getattr(config, name)) for name in ("model", "loss", "view", "optim", "schedule")
    }
    return flatten(sections) | {
        "batch_size": config.train.batch_size,
        "amp": config.train.amp,
        "epochs": epochs,
    }


def _rating(
    kind: str, config: Config, data: Data, rater: Rater, device: torch.device, epochs: float, meter: Meter
) -> Floats:
    model = fit(
        config,
        data,
        rater.train_ids,
        device,
        seed=rater.seed,
        epochs=epochs,
        tick=partial(meter.add, TRAINED),
    )
    measure = measure_of(kind, config, data.num_classes)
    tick = partial(meter.add, RATED)
    return rate(model, data, rater.rated_ids, measure, batch_size=config.train.batch_size, tick=tick)


def _work(rater: Rater, config: Config, epochs: float) -> int:
    batch_size = config.train.batch_size
    return TRAINED * num_steps(epochs, len(rater.train_ids), batch_size) + RATED * -(
        -len(rater.rated_ids) // batch_size
    )


@contextmanager
def _loaded(config: Config, seed: int, device: torch.device) -> Iterator[Data]:
    """The data set with the views of this seed; closed at the end of the context."""
    data = load_data(config.data, config.view, seed=seed, device=device, batch_size=config.train.batch_size)
    data.refuse_trees("sbpipe score")
    try:
        yield data
    finally:
        data.close()
