"""From a welcome to a selector: the trainer's settings, this side's own device and paths, and weights by the
shortest way.
"""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sbpipe.config import Config, flatten, from_dict, is_local, resolve, to_dict
from sbpipe.data import Data, Order, load_data, score_file
from sbpipe.errors import DeviceError, PeerRejected
from sbpipe.link.messages import Welcome
from sbpipe.machine import devices
from sbpipe.models import build_model, parts_of
from sbpipe.models.losses import build_score
from sbpipe.records import Manifest
from sbpipe.runs.directory import SELECTOR_EVENTS
from sbpipe.runs.events import EventLog, Teller
from sbpipe.runs.spans import Spans
from sbpipe.scoring import Scorer
from sbpipe.scoring.precision import refuse
from sbpipe.selection import ScoreCache, TrainedLosses, build_policy
from sbpipe.selector.answer import Selector
from sbpipe.selector.service import Built
from sbpipe.weights import manifest as layout
from sbpipe.weights.replica import PulledSource, Replica, SlotSource, WeightsSource
from sbpipe.weights.slots import Slots

log = logging.getLogger("sbpipe.selector")


def merge(theirs: Config, given: Mapping[str, Any]) -> Config:
    """The trainer's settings with this side's own device, link and paths; anything else that was given must
    agree.
    """
    ours, checked = flatten(to_dict(theirs)), flatten(to_dict(resolve(given)))
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
    own = config.selector
    refuse(own.precision, device)
    model = build_model(
        config.model, num_classes=data.num_classes, input_shape=data.input_shape, seed=config.seed
    )
    manifest = layout.build_manifest(model, parts_of(model), config.sync.dtype)
    irreducible = None
    if config.selection.policy == "rho":
        irreducible = data.scores_in(
            config.selection.irreducible, key="selection.irreducible", kind="irreducible"
        )
    scorer = Scorer(
        model,
        build_score(config.loss, config.selection.score),
        precision="fp32" if own.precision == "auto" else own.precision,
        device=device,
        scale=own.scale,
        compiled=own.compile,
        min_agreement=own.min_agreement,
    )
    selector = Selector(
        seed=config.seed,
        batch_size=config.score_batch_size,
        candidates=data.score,
        order=Order(data.train.num_examples, config.seed),
        scorer=scorer,
        policy=build_policy(config.selection),
        needs_classes=config.selection.history_by == "class",
        floor=config.selection.floor,
        irreducible=irreducible,
        cache=ScoreCache(
            data.train.num_examples,
            every=config.selection.reuse_epochs,
            by=config.selection.reuse_by,
            keep=config.selection.keep,
        ),
        trained=trained,
        replica=Replica(scorer.model, manifest, scorer.weights_arrived),
        source=source,
        spans=spans,
        events=events,
    )
    selector.rehearse(own)
    return selector, manifest


class Builder:
    """Turns each welcome into a selector; data that a restarted trainer still wants is not loaded again."""

    def __init__(
        self, selector_id: str, given: Mapping[str, Any], device: torch.device, spans: Spans
    ) -> None:
        self._selector_id = selector_id
        self._given = given
        self._device = device
        self._spans = spans
        self._loaded: tuple[object, Data] | None = None
        self.events = EventLog(None, "selector")
        self._teller = Teller(self.events)
        logging.getLogger("sbpipe.scoring").addHandler(self._teller)

    def __call__(self, welcome: Welcome) -> Built:
        """Build for this trainer."""
        config = merge(from_dict(json.loads(welcome.config)), self._given)
        self._open_events(Path(welcome.run))
        data = self._load(config)
        slots = self._attach(welcome, config)
        pulled = PulledSource()
        source: WeightsSource = pulled if slots is None else SlotSource(slots)
        try:
            selector, manifest = assemble(config, data, source, self._device, self._spans, self.events)
        except (RuntimeError, MemoryError) as error:
            if not devices.is_out_of_memory(error):
                raise
            reason = (
                f"out of memory with model.name = {config.model.name!r}. Lower selector.batch_size or "
                "selector.precision"
            )
            raise DeviceError(f"selector.device = '{self._device}': {reason}") from None
        fingerprints = {
            "data": data.fingerprint,
            "model": manifest.digest,
            "weights": "pulled" if slots is None else "shared",
        }
        fingerprints["precision"] = selector.precision
        if selector.irreducible is not None:
            fingerprints["irreducible"] = score_file.digest(selector.irreducible)
        self.events.write(
            "built", selector=self._selector_id, device=devices.describe(self._device), **fingerprints
        )
        fast = layout.fast_part(manifest) if config.fast_interval else None
        return Built(
            selector,
            fingerprints,
            pulled if slots is None else None,
            manifest.num_bytes,
            fast.num_bytes if fast else 0,
        )

    def _open_events(self, run: Path) -> None:
        """Events go beside the trainer's where its run directory can be seen from here."""
        self.events.close()
        visible = run.is_dir() and os.access(run, os.W_OK)
        self.events = EventLog(
            run / SELECTOR_EVENTS.format(self._selector_id) if visible else None, "selector"
        )
        self._teller.events = self.events

    def _load(self, config: Config) -> Data:
        wanted = (config.data, config.view, config.seed)
        if self._loaded is None or self._loaded[0] != wanted:
            self.close()
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
        if not welcome.shared_memory or not config.sync.shared_memory:
            return None
        try:
            return Slots.attach(welcome.shared_memory, welcome.shared_fast)
        except (OSError, ValueError) as error:
            log.info("weights will be pulled over the wire: no shared memory with the trainer (%s)", error)
            return None

    def close(self) -> None:
        """Let go of loaders."""
        if self._loaded is not None:
            for split in (self._loaded[1].train, self._loaded[1].score, self._loaded[1].test):
                split.close()
            self._loaded = None
