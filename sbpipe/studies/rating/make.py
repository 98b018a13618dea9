"""From settings to a score file, model by model; given again, a command goes on behind finished models.

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
from sbpipe.studies.rating.ensembles import PLANS, Part, joined
from sbpipe.studies.rating.fit import fit, measure_of, num_steps, rate
from sbpipe.studies.rating.meter import RATED, TRAINED, Meter, Tell
from sbpipe.studies.rating.store import KEY, Store


def make_scores(
    kind: str, config: Config, out: Path, *, models: int, epochs: float, tell: Tell, key: str = KEY
) -> ScoreFile:
    """The scores of the whole data set (unpruned), left in `out`, which the flag or setting `key` names."""
    config = replace(
        # Not augmented, so that a number belongs to the example and not to one view of it.
        config,
        data=replace(config.data, prune="", prune_share=0.0),
        view=replace(config.view, score="clean"),
    )
    device = devices.resolve("train.device", devices.plan(config.train.device, config.selector.device)[0])
    devices.use(device)
    # Each model loads the data for itself below, because views depend on its seed.
    with _loaded(config, config.seed, device) as data:
        fingerprint, num_examples = data.fingerprint, data.train.num_examples
    store = Store(out, kind, fingerprint, recipe_of(config, epochs), key=key)
    store.open()
    parts = PLANS[kind](models, num_examples, config.seed)
    ratings = {part.name: rating for part in parts if (rating := store.find(part)) is not None}
    missing = [part for part in parts if part.name not in ratings]
    meter = Meter(tell, models=len(parts), work=sum(_work(part, config, epochs) for part in missing))
    for part in missing:
        meter.model = parts.index(part) + 1
        with _loaded(config, part.seed, device) as data:
            ratings[part.name] = _rating(kind, config, data, part, device, epochs, meter)
        # At once: a stop costs the model at work and no other.
        store.keep(part, ratings[part.name])
    return store.finish(joined(parts, [ratings[part.name] for part in parts], num_examples), parts)


def recipe_of(config: Config, epochs: float) -> dict[str, Any]:
    """Everything but the data set and the models' own seeds that decides what a model says."""
    sections = {
        name: asdict(getattr(config, name)) for name in ("model", "loss", "view", "optim", "schedule")
    }
    return flatten(sections) | {
        "batch_size": config.train.batch_size,
        "amp": config.train.amp,
        "epochs": epochs,
    }


def _rating(
    kind: str, config: Config, data: Data, part: Part, device: torch.device, epochs: float, meter: Meter
) -> Floats:
    model = fit(
        config, data, part.train_ids, device, seed=part.seed, epochs=epochs, tick=partial(meter.add, TRAINED)
    )
    measure = measure_of(kind, config, data.num_classes)
    tick = partial(meter.add, RATED)
    return rate(model, data, part.rated_ids, measure, batch_size=config.train.batch_size, tick=tick)


def _work(part: Part, config: Config, epochs: float) -> int:
    batch_size = config.train.batch_size
    return TRAINED * num_steps(epochs, len(part.train_ids), batch_size) + RATED * -(
        -len(part.rated_ids) // batch_size
    )


@contextmanager
def _loaded(config: Config, seed: int, device: torch.device) -> Iterator[Data]:
    """The data set with the views of this seed, as long as it is needed."""
    data = load_data(config.data, config.view, seed=seed, device=device, batch_size=config.train.batch_size)
    try:
        yield data
    finally:
        for split in (data.train, data.score, data.test):
            split.close()
