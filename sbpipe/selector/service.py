"""The selector's process: a thread that talks and a loop that scores; it survives restarts of the trainer.

link thread   hello, heartbeats, leases into the inbox, weights pulled piece by piece, selections out
main loop     takes from the inbox: a welcome (build everything, say ready) or a lease (answer it)

It must not know what a selector is built of, nor models or data.
"""

import logging
import os
import platform
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sbpipe.config import LinkConfig
from sbpipe.errors import PeerLost, PeerRejected, SbpipeError
from sbpipe.link import messages
from sbpipe.link.ports import OnePeerPort
from sbpipe.link.reaching import why_silent
from sbpipe.records import Lease, Part, RunEnd, SelectorStats
from sbpipe.runs.spans import Spans
from sbpipe.selector.answer import Selector
from sbpipe.selector.inbox import Inbox
from sbpipe.selector.puller import Arrivals, Puller
from sbpipe.version import __version__

log = logging.getLogger("sbpipe.selector")

# A signal sets `is_stopped` but does not wake the queue, so the main loop polls this often.
_POLL_S = 0.2
_ASK_AFTER_S = 15.0
"""When to look into the trainer's silence: not at once, since it may still be loading its data; not at the
end of the wait, since the address may be wrong.
"""


def new_selector_id() -> str:
    """A name no other selector has, readable in a log."""
    host = re.sub(r"[^A-Za-z0-9]+", "-", platform.node())[:24].strip("-") or "selector"
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class Built:
    """What was built from a welcome; `pulled` is None where weights come through shared memory."""

    selector: Selector
    ready: messages.Ready
    pulled: Arrivals | None
    snapshot_bytes: Mapping[Part, int]


class SelectorService:
    """Serves one trainer after another until it is told goodbye, is rejected, or has waited long enough."""

    def __init__(
        self,
        port: OnePeerPort,
        hello: messages.Hello,
        link: LinkConfig,
        build: Callable[[messages.Welcome], Built],
        spans: Spans,
        moved: Callable[[], OnePeerPort | None] = lambda: None,
    ) -> None:
        self._port, self._hello, self._link = port, hello, link
        self._build, self._moved = build, moved
        self._spans = spans
        self._inbox = Inbox()
        self._heartbeat_s = link.heartbeat_s
        self._lost_after_s = link.lost_after_s
        self._built: Built | None = None
        self._puller: Puller | None = None
        self._heard_at = time.monotonic()
        self._was_welcomed = False
        self._said_hello = False
        self._is_lost = False
        self._has_asked = False
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._talk, name="link", daemon=True)

    # --- the main loop ----------------------------------------------------------------------------

    def run(self, is_stopped: threading.Event) -> RunEnd:
        """Answer leases until the end; returns how it ended. PeerLost if the trainer failed."""
        self._thread.start()
        try:
            idle_since = time.perf_counter()
            while not is_stopped.is_set():
                message = self._inbox.get(_POLL_S)
                if message is None:
                    continue
                self._spans.add("idle", idle_since, time.perf_counter() - idle_since)
                if isinstance(message, messages.Goodbye):
                    if message.end is RunEnd.FAILED:
                        raise PeerLost(message.reason)
                    return message.end
                if isinstance(message, SbpipeError):
                    raise message
                self._serve(message)
                idle_since = time.perf_counter()
            self._port.post(messages.Goodbye(RunEnd.STOPPED))
            return RunEnd.STOPPED
        except BaseException as error:
            # So that the trainer grants its leases to others at once, and not after a silence.
            self._port.post(messages.Goodbye(RunEnd.FAILED, (str(error) or type(error).__name__)[:200]))
            raise
        finally:
            self._is_stopping.set()
            self._port.wake()
            self._thread.join(5.0)
            self._port.close()

    def _serve(self, message: messages.Welcome | Lease) -> None:
        if isinstance(message, messages.Welcome):
            self._built = self._puller = None
            built = self._build(message)
            self._puller = self._puller_of(built)
            # Totals restart with this trainer: neither the one before nor the rehearsal counts.
            self._spans.clear()
            # Last: as soon as `_built` is set, the link thread uses it, the puller and the totals.
            self._built = built
            self._port.post(built.ready)
        elif self._built is not None:
            selection = self._built.selector.answer(message)
            with self._spans.span("send"):
                self._port.post(selection)
            # After the answer, so that the trainer has something to do meanwhile.
            self._built.selector.tune()

    def _puller_of(self, built: Built) -> Puller | None:
        if built.pulled is None:
            return None
        piece_bytes = int(self._link.chunk_mib * 2**20)
        return Puller(built.snapshot_bytes, piece_bytes, built.pulled, self._send, self._spans)

    def _send(self, message: messages.Message) -> None:
        # Read at each send: a trainer that moved has another port.
        self._port.send(message)

    def status(self) -> SelectorStats | None:
        """What a terminal may show; None while it serves no trainer."""
        built = self._built
        return built.selector.stats() if built else None

    # --- the link thread --------------------------------------------------------------------------

    def _talk(self) -> None:
        try:
            next_beat = 0.0
            while not self._is_stopping.is_set():
                for message in self._port.receive(self._heartbeat_s / 2):
                    self._handle(message)
                now = time.monotonic()
                if now >= next_beat:
                    next_beat = now + self._heartbeat_s
                    self._beat()
                    self._watch(now)
            # Sends what was posted last: the goodbye.
            self._port.receive(0.0)
        except SbpipeError as error:
            self._inbox.put(error)
        except BaseException as error:  # noqa: BLE001 - the top of a thread: the main loop raises it again
            self._inbox.put(_Bug(error))

    def _beat(self) -> None:
        if self._port.session == messages.NO_SESSION:
            self._said_hello = True
            self._port.send(self._hello)
        else:
            built = self._built
            self._port.send(messages.Heartbeat(built.selector.progress if built else 0, self.status()))

    def _watch(self, now: float) -> None:
        refusal = self._port.refusal
        # A restarted trainer has other keys, and its run directory names them.
        if refusal and not self._look_elsewhere():
            raise PeerRejected(refusal)
        silent_s = now - self._heard_at
        patience_s = self._link.orphan_timeout_s if self._was_welcomed else self._link.wait_s
        if silent_s > patience_s:
            knob = "link.orphan_timeout_s" if self._was_welcomed else "link.wait_s"
            why = why_silent(self._link.connect)
            raise PeerLost(
                f"no trainer at {self._link.connect} for {silent_s:.0f} s ({knob}){': ' if why else ''}{why}"
            )
        if silent_s > _ASK_AFTER_S and not self._has_asked:
            self._has_asked = True
            if why := why_silent(self._link.connect):
                log.warning("still waiting, up to %.0f s: %s", patience_s, why)
        if self._was_welcomed and silent_s > self._lost_after_s and not self._is_lost:
            self._is_lost = True
            log.warning("the trainer is silent for %.1f s; waiting up to %.0f s for it", silent_s, patience_s)
            # Hello again at every beat: a restarted trainer has a new session and knows no selector.
            self._port.session = messages.NO_SESSION
        if silent_s > self._lost_after_s:
            self._look_elsewhere()
        puller = self._puller
        if puller is not None:
            puller.watch(now)

    def _look_elsewhere(self) -> bool:
        """Connect to the trainer's present address; returns whether it has changed."""
        port = self._moved()
        if port is not None:
            self._port, old = port, self._port
            old.close()
        return port is not None

    def _handle(self, message: messages.Message) -> None:
        self._heard_at = time.monotonic()
        # Read once: the main loop resets it when it builds for another welcome.
        puller = self._puller
        if isinstance(message, messages.Welcome):
            # Hellos queue up before the trainer listens, and it answers each of them.
            if not self._said_hello:
                return
            self._said_hello = False
            self._is_lost, self._was_welcomed, self._has_asked = False, True, False
            self._heartbeat_s = message.heartbeat_s
            # Below the orphan timeout: otherwise it would give up before it looks for a trainer started
            # elsewhere.
            self._lost_after_s = min(message.lost_after_s, self._link.orphan_timeout_s / 2)
            self._inbox.drop_leases()
            self._inbox.put(message)
        elif isinstance(message, Lease):
            if puller is not None:
                puller.lease(message)
            self._inbox.put(message)
        elif isinstance(message, messages.Announce | messages.Chunk | messages.Gone):
            if puller is not None:
                puller.handle(message)
        elif isinstance(message, messages.Fenced):
            log.info("the trainer does not know this selector any more: saying hello again")
            self._port.session = messages.NO_SESSION
        elif isinstance(message, messages.Reject):
            raise PeerRejected(message.reason)
        elif isinstance(message, messages.Goodbye):
            self._inbox.put(message)


class _Bug(SbpipeError):
    """Carries an unexpected error from the link thread to the main loop, with its traceback as the cause."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"the link thread failed: {error!r}")
        self.__cause__ = error


def hello_of(selector_id: str, device: str, precision: str) -> messages.Hello:
    """How this process introduces itself."""
    return messages.Hello(
        selector_id, platform.node()[:255], os.getpid(), device[:64], precision, __version__
    )
