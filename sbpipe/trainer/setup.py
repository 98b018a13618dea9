"""Everything a run needs that can be wrong, built and tried before anything is written.

Knows no run directory and no loop.
"""

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from sbpipe.config import Config
from sbpipe.config.plugins import is_plugin
from sbpipe.data import Data, load_data, score_file
from sbpipe.errors import ConfigError, DeviceError
from sbpipe.machine import devices, numerics
from sbpipe.machine.device_spans import Plan, spans_on
from sbpipe.machine.layout import layout_of, placed
from sbpipe.models import build_model, parts_of
from sbpipe.models.calling import called
from sbpipe.models.losses import PerExampleLoss, build_loss
from sbpipe.models.metrics import Metric, build_metric
from sbpipe.records import Floats, Manifest
from sbpipe.runs.names import LOOP_STAGES, stages_of
from sbpipe.runs.spans import Spans
from sbpipe.trainer.evaluation import Evaluation, evaluate
from sbpipe.trainer.first_weights import load_first_weights
from sbpipe.trainer.job import Job
from sbpipe.trainer.serving.feed import Examples
from sbpipe.trainer.step import TrainStep
from sbpipe.trainer.stream.scores import refuse_forgetting
from sbpipe.weights import direct
from sbpipe.weights.leftovers import sweep
from sbpipe.weights.manifest import build_manifest, fast_part, lies_channels_last
from sbpipe.weights.slots import Slots

log = logging.getLogger("sbpipe.trainer")

ON_DEVICE = Plan(
    # Timed by the host: `wait_view` lies within `wait` and is known only afterwards.
    timed=[name for name in LOOP_STAGES if name not in ("wait_view", "augment")],
    waiting=["wait"],
    worked="augment",
    side=["view"],
    left_out=stages_of("trainer", "apart"),
    is_looked_into=True,
)
"""What an accelerator times of a loop."""


@dataclass(frozen=True)
class Setup:
    """The parts that both the trainer's loop and its selectors depend on."""

    config: Config
    device: torch.device
    data: Data
    loss: PerExampleLoss
    train_step: TrainStep
    manifest: Manifest
    spans: Spans
    irreducible: Floats | None = None
    metric: Metric | None = None
    is_entropy: bool = False
    """Whether the losses were found to be plain cross entropy of classes."""
    notes: tuple[str, ...] = ()
    """What the user should know about how it was built."""

    @property
    def fingerprints(self) -> dict[str, str]:
        """What a selector must agree on."""
        of_scores = {} if self.irreducible is None else {"irreducible": score_file.digest(self.irreducible)}
        return {"data": self.data.fingerprint, "model": self.manifest.digest, **of_scores}

    def job(self, examples: Examples | None = None) -> Job:
        """What an engine selects from and publishes; `examples` loads its batches (by default, the data)."""
        train = self.data.train
        return Job(
            config=self.config,
            model=self.train_step.published,
            manifest=self.manifest,
            examples=examples or train,
            num_examples=train.num_examples,
            num_classes=self.data.num_classes,
            classes=train.classes,
            fingerprints=self.fingerprints,
            irreducible=self.irreducible,
            is_entropy=self.is_entropy,
        )

    def evaluate(self, goes_on: Callable[[], bool] = lambda: True) -> Evaluation | None:
        """Test the model as it is now; None if `goes_on`, asked before each batch, said no."""
        return evaluate(
            self.train_step.judged,
            self.loss,
            self.data.test,
            batch_size=self.config.eval.batch_size,
            num_classes=self.data.num_classes,
            metric=self.metric,
            goes_on=goes_on,
        )

    def slots(self, session: bytes = b"") -> Slots:
        """Slots for this run's snapshots."""
        return slots_for(self.config, self.manifest, self.device, session)


def slots_for(config: Config, manifest: Manifest, device: torch.device, session: bytes = b"") -> Slots:
    """Slots for snapshots: in shared memory under the session's name where possible, else private.

    With `sync.direct`, slots that another process reads lie on the trainer's device. Under a logical clock
    there are `lag` more of them: a selector may still need the version of `lag` steps ago.
    """
    num_slots = 3 + config.lag
    fast = fast_part(manifest) if config.fast_interval else None
    fast_bytes = fast.num_bytes if fast is not None else 0
    num_bytes = manifest.num_bytes
    for name in sweep():
        log.info("removed %s from shared memory: its trainer is gone", name)
    if session and config.sync.direct:
        return direct.create(
            num_bytes, device, name=session.hex(), num_slots=num_slots, fast_bytes=fast_bytes
        )
    if session and config.sync.shared_memory:
        try:
            return Slots.create(num_bytes, num_slots=num_slots, name=session.hex(), fast_bytes=fast_bytes)
        except OSError as error:
            log.warning("no shared memory (%s): selectors will pull weights over the wire", error)
    return Slots.create(num_bytes, num_slots=num_slots, fast_bytes=fast_bytes)


def refuse_direct(config: Config, device: torch.device) -> None:
    """Refuse `sync.direct` on a device that cannot do it, before anything is loaded or opened."""
    if config.sync.direct and not config.is_one_process:
        direct.sharing_of(device, "train.device")


MakeStep = Callable[[Config, nn.Module, PerExampleLoss, Spans], TrainStep]


def prepare(
    config: Config,
    device_name: str | None = None,
    *,
    is_resumed: bool = False,
    make_step: MakeStep = TrainStep.alone,
    num_ranks: int = 1,
) -> Setup:
    """Build data, model, loss and optimizer on the trainer's device or the one named, and rehearse a step.

    A resumed run takes its weights from a checkpoint, so `train.init_from` need not exist any more. Each of
    several ranks makes a step of its own kind and rehearses its share.
    """
    device = devices.resolve(
        "train.device", device_name or devices.plan(config.train.device, config.selector.device)[0]
    )
    refuse_direct(config, device)
    if len(config.selector.devices) > 1:  # of `sbpipe run`: on this very machine
        for name in config.selector.devices:
            devices.resolve("selector.device", name)
    devices.use(device)
    repeats = numerics.make_repeatable(device) if config.must_repeat else ""
    spans, untimed = spans_on(device, ON_DEVICE._replace(apart=stages_of("trainer", "apart")))
    data = load_data(
        config.data, config.view, seed=config.seed, device=device, batch_size=config.train.batch_size
    )
    _refuse_for_trees(config, data)
    irreducible = None
    if config.selection.traits.needs_irreducible:
        irreducible = data.scores_in(
            config.selection.irreducible, key="selection.irreducible", kind="irreducible"
        )
    try:
        model, loaded = _model_of(config, data, is_resumed=is_resumed)
        notes = tuple(filter(None, (repeats, untimed, loaded)))
        loss, metric = build_loss(config.loss), build_metric(config.eval)
        # A sharded model is moved share by share: the whole may not fit on a device.
        model = model if num_ranks > 1 and config.train.shard != "none" else placed(model, device)
        manifest = build_manifest(
            model, parts_of(model), config.sync.dtype, is_channels_last=lies_channels_last(model)
        )
        train_step = make_step(config, model, loss, spans)
        is_entropy = train_step.rehearse(
            *data.train.batch(np.arange(-(-config.train.batch_size // num_ranks)), 0)
        )
        _rehearse_evaluation(config, data, model, metric)
    except (RuntimeError, MemoryError) as error:
        data.train.close()
        if not devices.is_out_of_memory(error):
            raise
        gc.collect()
        raise DeviceError(
            f"train.device = '{device}': out of memory with train.batch_size = {config.train.batch_size} and "
            "model.name = "
            f"{config.model.name!r}. Lower train.batch_size, set train.amp, or choose a smaller model"
        ) from None
    _check_length(config, data.train.num_examples)
    refuse_forgetting(config, data.train.num_examples)
    return Setup(
        config, device, data, loss, train_step, manifest, spans, irreducible, metric, is_entropy, notes
    )


def _model_of(config: Config, data: Data, *, is_resumed: bool) -> tuple[nn.Module, str]:
    """The model with its initial weights, and a note of their source, if they were loaded."""
    model = build_model(
        config.model,
        num_classes=data.num_classes,
        input_shape=data.input_shape,
        seed=config.seed,
        input_dtype=data.input_dtype,
        is_tried=not data.has_trees,
    )
    source = "" if is_resumed else config.train.init_from
    return model, load_first_weights(model, config.model.name, source) if source else ""


def _rehearse_evaluation(config: Config, data: Data, model: nn.Module, metric: Metric | None) -> None:
    """Evaluate one batch, so that errors show now and not after the first epoch."""
    with torch.inference_mode():
        tested_ids = np.arange(min(config.eval.batch_size, data.test.num_examples))
        inputs, targets = data.test.batch(tested_ids, 0)
        outputs = called(model.eval(), inputs, layout_of(model))
        if metric is not None:
            metric(outputs, targets)


def _refuse_for_trees(config: Config, data: Data) -> None:
    """Refuse settings that need batches of plain tensors, where a user's collate function makes them."""
    if not data.has_trees:
        return
    if config.train.accumulate > 1:
        reason = "a batch that the data set's own collate function made cannot be cut into parts"
        way_out = "Set it to 1, or use sbpipe.select(..., accumulate=N) in a loop of your own"
        raise ConfigError("train.accumulate", config.train.accumulate, reason, way_out)
    if not is_plugin(config.model.name):
        reason = "named models take images, and this data set has batches of its own make"
        raise ConfigError("model.name", config.model.name, reason, "Name your own model: module:function")


def _check_length(config: Config, num_examples: int) -> None:
    """A run by epochs must be able to fill one batch."""
    if config.train.steps or config.train.seconds:
        return
    keep = config.selection.keep_rate
    if config.train.epochs * num_examples * keep < config.train.batch_size:
        reason = (
            f"keeping {keep:.3g} of {num_examples} examples does not fill one batch of "
            f"{config.train.batch_size} in that time"
        )
        raise ConfigError(
            "train.epochs", config.train.epochs, reason, "Train longer, keep more, or lower train.batch_size"
        )
