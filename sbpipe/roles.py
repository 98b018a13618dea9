"""What a process becomes: trainer, selector, or both in one. Wires the rooms together; the only place that knows all of them."""

import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sbpipe import devices
from sbpipe.config import Config, warnings_of
from sbpipe.errors import PeerLost
from sbpipe.link.connection import NotThereYet, connection_of, write_connection
from sbpipe.link.inline import InlinePort
from sbpipe.link.messages import Message
from sbpipe.link.opening import open_selector_port, open_trainer_port
from sbpipe.link.sockets import SelectorPort
from sbpipe.metrics import Spans
from sbpipe.records import Lease
from sbpipe.run_dir import RunDir, claim
from sbpipe.selector.answer import Selector
from sbpipe.selector.build import Builder, assemble
from sbpipe.selector.service import SelectorService, hello_of, new_selector_id
from sbpipe.trainer.run import TrainerRun, make_slots
from sbpipe.trainer.setup import prepare
from sbpipe.weights.replica import SlotSource

log = logging.getLogger("sbpipe")


def run_trainer(config: Config, path: Path, *, resume: bool, overwrite: bool, on_open: Callable[[RunDir], None]) -> dict[str, Any]:
    """Train with selectors that connect; returns the summary."""
    began = time.monotonic()
    claim(path, resume=resume, overwrite=overwrite)
    setup = prepare(config)
    port = open_trainer_port(config.link)
    run_dir = _open_run_dir(config, path, resume=resume, overwrite=overwrite, on_open=on_open)
    run_dir.write_environment({"trainer": devices.describe(setup.device), "selector": config.selector.device})
    write_connection(run_dir.path, connection_of(port.endpoints, port.session, config.link.keys))
    log.info("listening at %s; a selector connects with: sbpipe selector --connect %s", port.endpoints.control, run_dir.path)
    run = TrainerRun(setup, run_dir, make_slots(setup, port.session, shared=True), port, began=began)
    return run.run(resume=resume)


def run_inline(config: Config, path: Path, *, resume: bool, overwrite: bool, on_open: Callable[[RunDir], None]) -> dict[str, Any]:
    """Both roles in this process, over the in-process port; returns the summary."""
    began = time.monotonic()
    claim(path, resume=resume, overwrite=overwrite)
    setup = prepare(config)
    run_dir = _open_run_dir(config, path, resume=resume, overwrite=overwrite, on_open=on_open)
    run_dir.write_environment({"trainer": devices.describe(setup.device), "selector": "inline"})
    slots = make_slots(setup, secrets.token_bytes(16), shared=False)
    answer: list[Selector] = []

    def handle(message: Message) -> list[Message]:
        return [answer[0].answer(message)] if isinstance(message, Lease) else []

    run = TrainerRun(setup, run_dir, slots, InlinePort(handle, "inline"), began=began)
    answer.append(assemble(config, setup.data, SlotSource(slots), setup.device, Spans(), run.events)[0])
    run.reception.admit("inline", devices.describe(setup.device), time.monotonic())
    return run.run(resume=resume)


def _open_run_dir(config: Config, path: Path, *, resume: bool, overwrite: bool, on_open: Callable[[RunDir], None]) -> RunDir:
    run_dir = RunDir.open(path, resume=resume, overwrite=overwrite)
    run_dir.write_config(config)
    on_open(run_dir)
    for warning in warnings_of(config):
        log.warning("%s", warning)
    return run_dir


def run_selector(config: Config, given: Mapping[str, Any]) -> str:
    """Serve the trainer at `link.connect`; how it ended."""
    device = devices.resolve("selector.device", devices.plan(config.train.device, config.selector.device)[1])
    devices.use(device)
    selector_id = new_selector_id()
    is_stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_stopped.set())
    port = _find_trainer(config, selector_id, is_stopped)
    if port is None:
        return "stopped"
    spans = Spans()
    builder = Builder(selector_id, given, device, spans)
    hello = hello_of(selector_id, devices.describe(device), config.selector.precision)
    try:
        return SelectorService(port, hello, config.link, builder, spans).run(is_stopped)
    finally:
        builder.close()


def _find_trainer(config: Config, selector_id: str, is_stopped: threading.Event) -> SelectorPort | None:
    """Open the port; a run directory whose trainer has not started yet is waited for."""
    give_up = time.monotonic() + config.link.wait_s
    is_said = False
    while not is_stopped.is_set():
        try:
            return open_selector_port(config.link, selector_id)
        except NotThereYet as error:
            if time.monotonic() > give_up:
                raise PeerLost(f"{error} (waited {config.link.wait_s:.0f} s, link.wait_s)") from None
            if not is_said:
                log.info("waiting for a trainer in %s", config.link.connect)
                is_said = True
            is_stopped.wait(0.1)
    return None
