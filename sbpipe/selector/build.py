"""From a welcome to a selector: the trainer's settings, its own device, the shortest way to weights."""

import contextlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sbpipe.config import OWN, Config, flatten, from_dict, is_local, resolve, to_dict
from sbpipe.data import Data, Order, load_data, score_file
from sbpipe.data.own_batches import OwnBatches
from sbpipe.data.tree_split import TreeSplit
from sbpipe.errors import ConfigError, DeviceError, PeerRejected
from sbpipe.link.messages import Ready, Welcome
from sbpipe.machine import devices, memory, numerics
from sbpipe.models import build_model, parts_of, weigh_model
from sbpipe.models.calling import pair_losses
from sbpipe.models.losses import build_score
from sbpipe.models.residuals import build_residual
from sbpipe.models.stand_in import Losses
from sbpipe.records import Floats, Ids, Manifest, Part
from sbpipe.runs.directory import SELECTOR_EVENTS
from sbpipe.runs.events import EventLog, Teller
from sbpipe.runs.spans import Spans
from sbpipe.scoring import Scorer
from sbpipe.scoring.autotune import Tuning
from sbpipe.scoring.own_scorer import OwnScorer
from sbpipe.scoring.precision import refuse
from sbpipe.selection import ScoreCache, TrainedLosses, build_policy
from sbpipe.selector.answer import Selector
from sbpipe.selector.forward import Candidates, ForwardPass
from sbpipe.selector.job import OwnJob
from sbpipe.selector.judge import Judge
from sbpipe.selector.permission import Permission
from sbpipe.selector.service import Built
from sbpipe.weights import direct
from sbpipe.weights.manifest import build_manifest, layouts_of
from sbpipe.weights.relay import RelayedSource
from sbpipe.weights.replica import PulledSource, Replica, SlotSource, WeightsSource
from sbpipe.weights.slots import Slots

log = logging.getLogger("sbpipe.selector")


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
    """The trainer's settings with this side's device, link and paths; all else that was given must agree."""
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


def assemble(
    config: Config,
    data: Data,
    source: WeightsSource,
    device: torch.device,
    spans: Spans,
    events: EventLog,
    trained: TrainedLosses | None = None,
) -> tuple[Selector, Manifest]:
    """A selector that scores with what `source` delivers, and the layout of the snapshots it can take.

    It judges by `trained` instead, the losses of last time, where it is given them.
    """
    refuse(config.selector.precision, device)
    model = _model_of(config, data)
    manifest = build_manifest(model, parts_of(model), config.sync.dtype)
    chosen = config.selection
    irreducible = None
    if chosen.traits.needs_irreducible:
        irreducible = data.scores_in(chosen.irreducible, key="selection.irreducible", kind="irreducible")
    judge = _judge_of(config, data.train.num_examples, data.score.targets_of, trained, irreducible)
    if isinstance(data.score, TreeSplit):
        own, batches = _own_scorer_of(config, model, pair_losses(config.loss), device), data.score.candidates
        return _wired(config, batches, own, manifest, judge, source, spans, events), manifest
    scorer = _scorer_of(config, model, device)
    return _wired(config, data.score, scorer, manifest, judge, source, spans, events), manifest


def assemble_own(
    config: Config,
    job: OwnJob,
    batches: OwnBatches,
    source: WeightsSource,
    device: torch.device,
    spans: Spans,
    events: EventLog,
    trained: TrainedLosses | None = None,
) -> tuple[Selector, Manifest]:
    """The same for the job of a user's own loop; its model becomes the selector's."""
    manifest = job.manifest(config.sync.dtype)
    scorer = _own_scorer_of(config, job.model, job.losses, device)
    classes = job.data.classes
    judge = _judge_of(
        config, job.data.num_examples, lambda ids: None if classes is None else classes[ids], trained
    )
    return _wired(config, batches, scorer, manifest, judge, source, spans, events), manifest


def _own_scorer_of(config: Config, model: nn.Module, losses: Losses, device: torch.device) -> OwnScorer:
    own = config.selector
    return OwnScorer(
        model,
        losses,
        precision=config.first_precision,
        device=device,
        compiled=own.compile,
        min_agreement=own.min_agreement,
        statistics=own.statistics,
        has_residuals=config.selection.traits.chooses_sets,
    )


def _wired(
    config: Config,
    candidates: Candidates,
    scorer: Scorer | OwnScorer,
    manifest: Manifest,
    judge: Judge,
    source: WeightsSource,
    spans: Spans,
    events: EventLog,
) -> Selector:
    replica = Replica(scorer.model, manifest, scorer.weights_arrived)
    forward = ForwardPass(candidates, scorer, replica, source, spans, events, _tuning_of(config, scorer))
    order = Order.of(config, candidates.num_examples)
    batch_size = config.score_batch_size
    if judge.needs_scores:
        # Real candidates, those of the first lease: ranges are measured on them.
        forward.rehearse(order.ids(0, 0, min(batch_size, candidates.num_examples)))
    return Selector(order, batch_size, forward, judge, spans, events)


def _model_of(config: Config, data: Data) -> nn.Module:
    """The trainer's model, unless that would take the memory of this host."""
    num_bytes = weigh_model(config.model, num_classes=data.num_classes, input_shape=data.input_shape)
    available = memory.available_bytes()
    # The model, what it is scored with, and a snapshot on its way.
    if available is not None and 3 * num_bytes > available:
        raise PeerRejected(
            f"model.name = {config.model.name!r} with model.options = {dict(config.model.options)!r}, as the "
            f"trainer has it, takes {num_bytes / 1e9:.1f} GB, three times; {available / 1e9:.1f} GB are left "
            "here"
        )
    return build_model(
        config.model,
        num_classes=data.num_classes,
        input_shape=data.input_shape,
        seed=config.seed,
        input_dtype=data.input_dtype,
        is_tried=not data.has_trees,
    )


def _scorer_of(config: Config, model: nn.Module, device: torch.device) -> Scorer:
    own = config.selector
    return Scorer(
        model,
        build_score(config.loss, config.selection.score),
        precision=config.first_precision,
        device=device,
        scale=own.scale,
        compiled=own.compile,
        min_agreement=own.min_agreement,
        statistics=own.statistics,
        residual=build_residual(config.loss) if config.selection.traits.chooses_sets else None,
    )


def _tuning_of(config: Config, scorer: Scorer | OwnScorer) -> Tuning | None:
    """What measures the settings that are left to "auto"; None where nothing is, or may be."""
    own = config.selector
    if not config.may_measure or "auto" not in (own.precision, own.batch_size):
        return None
    return Tuning(
        scorer,
        config.score_batch_size,
        has_precision=own.precision == "auto",
        has_batch_size=own.batch_size == "auto",
        least=own.min_agreement,
    )


def _judge_of(
    config: Config,
    num_examples: int,
    classes_of: Callable[[Ids], Ids | None],
    trained: TrainedLosses | None,
    irreducible: Floats | None = None,
) -> Judge:
    chosen = config.selection
    cache = ScoreCache(num_examples, every=chosen.reuse_epochs, by=chosen.reuse_by, keep=chosen.keep_rate)
    return Judge(
        build_policy(chosen),
        cache,
        seed=config.seed,
        floor=chosen.floor,
        trained=trained,
        irreducible=irreducible,
        classes_of=classes_of if chosen.history_by == "class" else None,
    )


class Builder:
    """Turns each welcome into a selector; data that a restarted trainer still wants is not loaded again."""

    def __init__(
        self,
        selector_id: str,
        permission: Permission,
        device: torch.device,
        spans: Spans,
        events_folder: Path | None = None,
        job: OwnJob | None = None,
    ) -> None:
        """`job` is what it selects for instead of what a trainer's settings name: that of a user's own
        loop.
        """
        self._selector_id = selector_id
        self._job = job
        self._batches: OwnBatches | None = None
        self._permission = permission
        self._events_folder = events_folder
        self._device = device
        self._spans = spans
        self._loaded: tuple[object, Data] | None = None
        self._relay: RelayedSource | None = None
        self.events = EventLog(None, "selector")
        # What scoring chose or warns of is read where the run was started, not on this terminal.
        self._teller = Teller(self.events)
        logging.getLogger("sbpipe.scoring").addHandler(self._teller)

    def __call__(self, welcome: Welcome) -> Built:
        """Build for this trainer."""
        config = merge(settings_in(welcome), self._permission.given)
        self._permission.check(config)
        self._check_job(config)
        self._open_events()
        repeats = numerics.make_repeatable(self._device) if config.must_repeat else ""
        if repeats:
            log.info("%s", repeats)
        slots = self._attach(welcome, config)
        pulled = self._puller_of(welcome, config) if slots is None else None
        source: WeightsSource = SlotSource(slots) if slots is not None else pulled or PulledSource()
        selector, manifest, fingerprints = self._assemble(config, source)
        ready = Ready(fingerprints, pulls_weights=slots is None, precision=selector.precision)
        self.events.write(
            "built",
            selector=self._selector_id,
            device=devices.describe(self._device),
            weights="pulled" if ready.pulls_weights else "direct" if config.sync.direct else "shared",
            precision=ready.precision,
            **fingerprints,
        )
        sizes = {part: layout.num_bytes for part, layout in layouts_of(manifest).items()}
        if not config.fast_interval:
            sizes.pop(Part.FAST, None)
        if isinstance(pulled, RelayedSource):
            pulled.expect(sizes)
        return Built(selector, ready, pulled, sizes)

    def _check_job(self, config: Config) -> None:
        is_own = config.data.name == OWN
        if is_own and self._job is None:
            raise PeerRejected(
                "the trainer runs a user's own loop, and this selector has no job. Start it with --job FILE "
                "(or "
                "module:function), or as the same script with SBPIPE_ROLE=selector"
            )
        if not is_own and self._job is not None:
            raise PeerRejected("--job is for a user's own loop, and the trainer is `sbpipe`'s. Leave it out")

    def _assemble(self, config: Config, source: WeightsSource) -> tuple[Selector, Manifest, dict[str, str]]:
        """The selector, the layout of its snapshots, and what the trainer must have the same."""
        try:
            if self._job is not None:
                return self._assemble_own(config, self._job, source)
            data = self._load(config)
            selector, manifest = assemble(config, data, source, self._device, self._spans, self.events)
        except (RuntimeError, MemoryError) as error:
            if not devices.is_out_of_memory(error):
                raise
            reason = (
                f"out of memory with model.name = {config.model.name!r}. Lower selector.batch_size or "
                "selector.precision"
            )
            raise DeviceError(f"selector.device = '{self._device}': {reason}") from None
        fingerprints = {"data": data.fingerprint, "model": manifest.digest}
        if selector.irreducible is not None:
            fingerprints["irreducible"] = score_file.digest(selector.irreducible)
        return selector, manifest, fingerprints

    def _assemble_own(
        self, config: Config, job: OwnJob, source: WeightsSource
    ) -> tuple[Selector, Manifest, dict[str, str]]:
        if self._batches is None:
            self._batches = OwnBatches(job.data, seed=config.seed, device=self._device)
        manifest = job.manifest(config.sync.dtype)
        fingerprints = job.fingerprints(self._batches, manifest, self._device)
        selector, _ = assemble_own(config, job, self._batches, source, self._device, self._spans, self.events)
        return selector, manifest, fingerprints

    def _open_events(self) -> None:
        """Events go where this selector's user said; a trainer never names a folder to write to."""
        self.events.close()
        folder = self._events_folder
        is_there = folder is not None and folder.is_dir() and os.access(folder, os.W_OK)
        self.events = EventLog(
            folder / SELECTOR_EVENTS.format(self._selector_id) if folder and is_there else None, "selector"
        )
        if not is_there:
            log.info("events are not kept: --connect RUN_DIR or --set selector.events=DIR says where")
        self._teller.events = self.events

    def _load(self, config: Config) -> Data:
        wanted = (config.data, config.view, config.seed)
        if self._loaded is None or self._loaded[0] != wanted:
            self._close_data()
            data = load_data(
                config.data,
                config.view,
                seed=config.seed,
                device=self._device,
                batch_size=config.train.batch_size,
            )
            self._loaded = (wanted, data)
        return self._loaded[1]

    def _attach(self, welcome: Welcome, config: Config) -> Slots | None:
        if config.sync.direct:
            # Never pulled instead: the trainer has no copy on its host to serve.
            return direct.attach(welcome.shared_memory, self._device)
        if not welcome.shared_memory or not config.sync.shared_memory:
            return None
        try:
            return Slots.attach(welcome.shared_memory)
        except (OSError, ValueError) as error:
            log.info("weights will be pulled over the wire: no shared memory with the trainer (%s)", error)
            return None

    def _puller_of(self, welcome: Welcome, config: Config) -> PulledSource | RelayedSource:
        """Weights over the wire: once for all selectors of this host, where they share memory."""
        if self._relay is not None:
            self._relay.close()
            self._relay = None
        # Under a clock one selector works at a time, and pulls what its leases name.
        if welcome.shared_memory and config.sync.shared_memory and not config.is_clocked:
            with contextlib.suppress(OSError):
                self._relay = RelayedSource(welcome.shared_memory)
        return self._relay or PulledSource()

    def close(self) -> None:
        """Let go of loaders, and leave the pulling of weights to another."""
        if self._relay is not None:
            self._relay.close()
            self._relay = None
        self._close_data()

    def _close_data(self) -> None:
        if self._batches is not None:
            self._batches.close()
            self._batches = None
        if self._loaded is not None:
            for split in (self._loaded[1].train, self._loaded[1].score, self._loaded[1].test):
                split.close()
            self._loaded = None
