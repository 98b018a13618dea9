"""From a welcome to a selector: the trainer's settings as far as they apply here, its data, the shortest way
to its weights. `assemble.py` builds the selector itself. It must not know how leases are answered.
"""

import contextlib
import logging
import os
from pathlib import Path

import torch

from sbpipe.config import OWN, Config
from sbpipe.data import Data, load_data, score_file
from sbpipe.data.own_batches import OwnBatches
from sbpipe.errors import DeviceError, PeerRejected
from sbpipe.link.messages import Ready, Welcome
from sbpipe.machine import devices, numerics
from sbpipe.records import Manifest, Part
from sbpipe.runs.directory import SELECTOR_EVENTS
from sbpipe.runs.events import EventLog, Teller
from sbpipe.runs.spans import Spans
from sbpipe.selector.answer import Selector
from sbpipe.selector.assemble import assemble, assemble_own
from sbpipe.selector.job import OwnJob
from sbpipe.selector.permission import Permission
from sbpipe.selector.service import Built
from sbpipe.selector.settings import merge, settings_in
from sbpipe.weights import direct
from sbpipe.weights.manifest import layouts_of
from sbpipe.weights.relay import RelayedSource
from sbpipe.weights.replica import PulledSource, SlotSource, WeightsSource
from sbpipe.weights.slots import Slots

log = logging.getLogger("sbpipe.selector")


class Builder:
    """Turns each welcome into a selector; data that a restarted trainer still uses is not loaded again."""

    def __init__(
        self,
        selector_id: str,
        permission: Permission,
        device: torch.device,
        spans: Spans,
        events_folder: Path | None = None,
        job: OwnJob | None = None,
    ) -> None:
        """`job` is that of a user's own loop; it replaces the data and model of the trainer's settings."""
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
        # Choices and warnings of scoring are shown where the run was started, so they become events.
        self._teller = Teller(self.events)
        logging.getLogger("sbpipe.scoring").addHandler(self._teller)

    def __call__(self, welcome: Welcome) -> Built:
        """Build a selector for this trainer."""
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
        selector, manifest, fingerprints = self._assemble(
            config, source, is_channels_last=welcome.is_channels_last
        )
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

    def _assemble(
        self, config: Config, source: WeightsSource, *, is_channels_last: bool
    ) -> tuple[Selector, Manifest, dict[str, str]]:
        """The selector, the layout of its snapshots, and the fingerprints that the trainer must share."""
        try:
            if self._job is not None:
                return self._assemble_own(config, self._job, source, is_channels_last=is_channels_last)
            data = self._load(config)
            selector, manifest = assemble(
                config,
                data,
                source,
                self._device,
                self._spans,
                self.events,
                is_channels_last=is_channels_last,
            )
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
        self, config: Config, job: OwnJob, source: WeightsSource, *, is_channels_last: bool
    ) -> tuple[Selector, Manifest, dict[str, str]]:
        if self._batches is not None and self._batches.seed != config.seed:
            # The user's loop began again with another seed: examples look different.
            self._batches.close()
            self._batches = None
        if self._batches is None:
            self._batches = OwnBatches(job.data, seed=config.seed, device=self._device)
        manifest = job.manifest(config.sync.dtype, is_channels_last=is_channels_last)
        fingerprints = job.fingerprints(self._batches, manifest, self._device)
        selector, _ = assemble_own(
            config,
            job,
            self._batches,
            source,
            self._device,
            self._spans,
            self.events,
            is_channels_last=is_channels_last,
        )
        return selector, manifest, fingerprints

    def _open_events(self) -> None:
        """Open the events where this selector's user said; a trainer never names a folder to write to."""
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
            # No fallback to pulling: the trainer has no copy in host memory to serve.
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
        """Close the loaders, and leave pulling weights to another selector."""
        if self._relay is not None:
            self._relay.close()
            self._relay = None
        self._close_data()

    def _close_data(self) -> None:
        if self._batches is not None:
            self._batches.close()
            self._batches = None
        if self._loaded is not None:
            self._loaded[1].close()
            self._loaded = None
