"""The roles of a process: trainer, selector, or both. Only this file and the gauges wire all rooms."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from sbpipe.config import Config, warnings_of
from sbpipe.interrupts import raise_again
from sbpipe.link.connection import run_dir_of
from sbpipe.link.inline import InlinePort
from sbpipe.link.opening import Listener
from sbpipe.machine import devices
from sbpipe.machine.beside import keep_to_what_is_left
from sbpipe.machine.cores import NO_SPARE_CORES, SpareCores
from sbpipe.machine.device_spans import spans_on
from sbpipe.machine.place import ALONE, Place
from sbpipe.process.inline import INLINE, port_to
from sbpipe.records import RunEnd, SelectorStats
from sbpipe.runs.checkpoints import has_checkpoint
from sbpipe.runs.directory import TRAINER_EVENTS, RunDir, claim, unwritable
from sbpipe.runs.events import EventLog
from sbpipe.runs.spans import Spans
from sbpipe.scoring.precision import refuse
from sbpipe.selection import TrainedLosses
from sbpipe.selector.assemble import assemble
from sbpipe.selector.build import Builder
from sbpipe.selector.finder import Finder
from sbpipe.selector.forward import PASSES
from sbpipe.selector.job import OwnJob
from sbpipe.selector.permission import ALLOW, Permission
from sbpipe.selector.service import SelectorService, hello_of, new_selector_id
from sbpipe.trainer.ranks.follower import Follower
from sbpipe.trainer.ranks.group import Group
from sbpipe.trainer.ranks.lead import engine_of, finished, prepare_rank
from sbpipe.trainer.run import TrainerRun
from sbpipe.trainer.setup import Setup, prepare
from sbpipe.weights.leftovers import sweep
from sbpipe.weights.replica import SlotSource
from sbpipe.weights.slots import Slots

log = logging.getLogger("sbpipe")

_LETTING_GO_S = 2.0

Doing = Callable[[str], None]
"""Called again and again with what the trainer does: a sign of life for whoever waits for its end."""


_Opened = TypeVar("_Opened", bound="_Closable")


def _tell_nobody(what: str) -> None:
    """Without a supervisor nobody waits for signs of life."""


def run_trainer(
    config: Config,
    path: Path,
    *,
    resume: bool,
    overwrite: bool,
    on_open: Callable[[RunDir], None],
    doing: Doing = _tell_nobody,
    place: Place = ALONE,
    spare: SpareCores = NO_SPARE_CORES,
) -> dict[str, Any]:
    """Train with selectors that connect; returns the summary, {} on ranks other than 0.

    `spare` are cores for everything but training, beside those that this process is pinned to.
    """
    began = time.perf_counter()
    setup, group = _begin(config, path, place, resume=resume, overwrite=overwrite)
    if place.rank and group is not None:
        Follower(setup, group).run()
        return {}
    # Before the run directory is opened: if the address is in use, nothing may be left there.
    with spare.for_threads():
        listener = Listener(config.link)
    port = listener.port
    try:
        run_dir = _open_run_dir(
            config,
            path,
            {"trainer": devices.describe(setup.device), "selector": config.selector.device},
            resume=resume,
            overwrite=overwrite,
            on_open=on_open,
        )
        with _closed_on_error(setup, run_dir) as opened:
            listener.announce(run_dir.path)
            elsewhere = "tcp://HOST:PORT --keys NAME.key, or --connect " if config.link.keys else ""
            log.info(
                "listening at %s; waiting up to %.0f s for: sbpipe selector --connect %s%s",
                port.endpoints.control,
                config.link.wait_s,
                elsewhere,
                run_dir.path,
            )
            events = opened(EventLog(run_dir.path / TRAINER_EVENTS, "trainer"))
            slots = opened(setup.slots(port.session))
            engine = engine_of(setup, group, port, slots, events)
            run = TrainerRun(setup, run_dir, engine, events, began=began, doing=doing, spare=spare)
        return finished(run.run(resume=resume), group)
    finally:
        listener.withdraw()


def run_inline(
    config: Config,
    path: Path,
    *,
    resume: bool,
    overwrite: bool,
    on_open: Callable[[RunDir], None],
    doing: Doing = _tell_nobody,
    place: Place = ALONE,
) -> dict[str, Any]:
    """Both roles in this process, over the in-process port; returns the summary, {} on ranks other than 0."""
    began = time.perf_counter()
    # A precision that this device cannot score in is refused before anything is loaded or opened.
    trainer, _ = devices.plan(config.train.device, config.selector.device)
    refuse(config.selector.precision, devices.resolve("train.device", trainer))
    setup, group = _begin(config, path, place, resume=resume, overwrite=overwrite)
    if place.rank and group is not None:
        Follower(setup, group).run()
        return {}
    run_dir = _open_run_dir(
        config,
        path,
        {"trainer": devices.describe(setup.device), "selector": "inline"},
        resume=resume,
        overwrite=overwrite,
        on_open=on_open,
    )
    with _closed_on_error(setup, run_dir) as opened:
        events = opened(EventLog(run_dir.path / TRAINER_EVENTS, "trainer"))
        slots = opened(setup.slots())
        needs_losses = config.selection.traits.needs_trained_losses
        trained = TrainedLosses(setup.data.train.num_examples) if needs_losses else None
        port = inline_port(setup, slots, events, trained)
        engine = engine_of(setup, group, port, slots, events, trained)
        engine.admit(INLINE, devices.describe(setup.device))
        run = TrainerRun(setup, run_dir, engine, events, began=began, doing=doing)
    return finished(run.run(resume=resume), group)


def _begin(
    config: Config, path: Path, place: Place, *, resume: bool, overwrite: bool
) -> tuple[Setup, Group | None]:
    """The parts of a trainer, alone or as one of several ranks; rank 0 claims the run directory."""
    # First, so that a wrong --run-dir is refused before the data is loaded.
    if place.rank == 0:
        claim(path, resume=resume, overwrite=overwrite)
    is_resumed = resume and has_checkpoint(path)
    if place.world == 1:
        return prepare(config, is_resumed=is_resumed), None
    return prepare_rank(config, place, path, is_resumed=is_resumed)


class _Closable(Protocol):
    def close(self) -> None: ...


@contextmanager
def _closed_on_error(setup: Setup, run_dir: RunDir) -> Iterator[Callable[[_Opened], _Opened]]:
    """Close the run directory, the loaders and whatever else was opened, unless a run takes them over."""
    with ExitStack() as stack:
        for known in (run_dir, setup.data):
            stack.callback(known.close)

        def opened(what: _Opened) -> _Opened:
            stack.callback(what.close)
            return what

        yield opened
        stack.pop_all()


def inline_port(
    setup: Setup, slots: Slots, events: EventLog, trained: TrainedLosses | None = None
) -> InlinePort:
    """A port whose one peer is a selector in this process, which answers in the caller's thread."""
    spans, _ = spans_on(setup.device, PASSES)
    selector, _ = assemble(
        setup.config,
        setup.data,
        SlotSource(slots),
        setup.device,
        spans,
        events,
        trained,
        is_channels_last=setup.manifest.is_channels_last,
    )
    return port_to(selector, setup.device)


def _open_run_dir(
    config: Config,
    path: Path,
    used_devices: dict[str, str],
    *,
    resume: bool,
    overwrite: bool,
    on_open: Callable[[RunDir], None],
) -> RunDir:
    # From here on an interrupt must clean up: a lock, a port, soon shared memory.
    raise_again()
    run_dir = RunDir.open(path, resume=resume, overwrite=overwrite)
    try:
        run_dir.write_environment(used_devices)
        # After the environment: settings make it a run, and ranks killed in between must know it as theirs.
        if not resume:
            run_dir.write_config(config)
    except OSError as error:
        run_dir.close()
        raise unwritable(run_dir.path, error) from None
    on_open(run_dir)
    for warning in warnings_of(config):
        log.warning("%s", warning)
    return run_dir


def run_selector(
    config: Config,
    given: Mapping[str, Any],
    show: Callable[[SelectorStats | None], None] | None = None,
    *,
    is_supervised: bool = False,
    job: OwnJob | None = None,
) -> RunEnd:
    """Serve the trainer at `link.connect`; returns how it ended. `show` gets its status twice a second.

    A supervised selector does not decide by itself whether the run is over. `job` is the job of a user's own
    loop, which a trainer cannot send.
    """
    # Planned for both roles, though only one runs here: `auto` must not take the trainer's accelerator.
    planned = devices.plan(config.train.device, config.selector.device, config.num_ranks)
    device = devices.resolve("selector.device", planned[1])
    keep_to_what_is_left(config, *planned, is_guest=job is not None)
    devices.use(device)
    selector_id = new_selector_id()
    is_stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_stopped.set())
    finder = Finder(config.link, selector_id, is_supervised=is_supervised)
    port = finder.find(is_stopped)
    if port is None:
        return RunEnd.STOPPED
    spans, untimed = spans_on(device, PASSES)
    if untimed:
        log.info("%s", untimed)
    builder = _builder_of(config, given, selector_id, device, spans, job)
    hello = hello_of(selector_id, devices.describe(device), config.selector.precision)
    service = SelectorService(port, hello, config.link, builder, spans, finder.moved)
    is_over = threading.Event()
    if show is not None:
        threading.Thread(
            target=_show_status, args=(service, show, is_over), name="progress", daemon=True
        ).start()
    try:
        return service.run(is_stopped)
    finally:
        is_over.set()
        builder.close()
        _clear_up(is_orphaned=is_supervised and is_stopped.is_set())


def _clear_up(*, is_orphaned: bool) -> None:
    """Remove what a killed trainer left in this host's shared memory; it would stay until a reboot.

    A selector whose parent is the trainer may learn of its death before the kernel has released its lock, so
    it tries for a while.
    """
    give_up = time.monotonic() + (_LETTING_GO_S if is_orphaned else 0.0)
    while not sweep() and time.monotonic() < give_up:
        time.sleep(0.05)


def _builder_of(
    config: Config,
    given: Mapping[str, Any],
    selector_id: str,
    device: torch.device,
    spans: Spans,
    job: OwnJob | None,
) -> Builder:
    """The builder that turns welcomes into selectors, with only the permissions that this user gave."""
    run_dir = run_dir_of(config.link.connect)
    allowed = frozenset([*config.selector.allow, *os.environ.get(ALLOW, "").split(",")])
    folder = Path(config.selector.events) if config.selector.events else run_dir
    return Builder(selector_id, Permission(allowed, given, run_dir), device, spans, folder, job)


def _show_status(
    service: SelectorService, show: Callable[[SelectorStats | None], None], is_over: threading.Event
) -> None:
    while not is_over.wait(0.5):
        show(service.status())
