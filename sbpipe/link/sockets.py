"""The two ends of the wire over ZeroMQ; the only file that imports zmq. It knows no meaning of messages.

    trainer    ROUTER control, ROUTER bulk   (bind)
    selector   DEALER control, DEALER bulk   (connect, routing id = selector_id)

Two pairs, because a heartbeat behind a snapshot waits for the whole snapshot. Flow control: the trainer never
waits for a peer. A selector is sent leases by credit and pulls snapshot chunks by credit, so a queue that is
full means a peer that stopped reading; then `send` says False and drops, and the ledger grants the lease
again. Nothing a peer sends makes `receive` raise.

A port belongs to one thread; `post` and `wake` are for the others. zmq's own threads do the network, one for
each pair.
"""

import contextlib
import itertools
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

import zmq
from zmq.utils import z85

from sbpipe.config import LinkConfig
from sbpipe.errors import ConfigError
from sbpipe.link import limits
from sbpipe.link.addresses import Address, Endpoints, parse
from sbpipe.link.binding import Keys, bind_error, refuse_ipc_in_use, require_keys, require_name
from sbpipe.link.frames import Body, Buffer, pack, seal
from sbpipe.link.gate import SelectorGate, TrainerGate
from sbpipe.link.messages import NO_SESSION, Hello, Message
from sbpipe.link.outbox import Bell, Outbox
from sbpipe.link.schema import CODES

Received = TypeVar("Received")
Socket = zmq.Socket[bytes]
Option = int | bytes


def new_key_pair() -> tuple[str, str]:
    """A fresh public and secret key."""
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def public_key_of(secret: str) -> str:
    """The public key that belongs to a secret one; ValueError if that is no key."""
    return zmq.curve_public(secret.encode()).decode()


def _tuning(
    thread: int, frame_bytes: int, queue: int, heartbeat_s: float, lost_s: float
) -> dict[int, Option]:
    return {
        # Each pair on its own thread of zmq: a snapshot being sent must not delay a heartbeat.
        zmq.AFFINITY: 1 << thread,
        zmq.MAXMSGSIZE: frame_bytes,
        zmq.SNDHWM: queue,
        zmq.RCVHWM: queue,
        zmq.HEARTBEAT_IVL: max(1, int(1000 * heartbeat_s)),
        zmq.HEARTBEAT_TIMEOUT: max(1, int(1000 * lost_s)),
        zmq.LINGER: limits.LINGER_MS,
    }


def _own_keys(keys: Keys) -> dict[int, Option]:
    return {zmq.CURVE_PUBLICKEY: keys.public.encode(), zmq.CURVE_SECRETKEY: keys.secret.encode()}


class _SocketPair(Generic[Received]):
    """What both ends share: two sockets, a bell, an outbox, and the polling of all of them."""

    def __init__(self, link: LinkConfig) -> None:
        self.dropped: Counter[str] = Counter()
        self._link = link
        # A context of its own, so that closing one port leaves the other ports of a process alone.
        self._context: zmq.Context[Socket] = zmq.Context(io_threads=2)
        self._bell = Bell()
        self._outbox: Outbox[tuple[str, Body]] = Outbox(self._bell, limits.MAX_POSTED)
        self._sequence = itertools.count()
        self._poller = zmq.Poller()
        self._poller.register(self._bell.fileno(), zmq.POLLIN)
        self._duties: dict[Any, Callable[[], None]] = {}

    def receive(self, timeout_s: float) -> list[Received]:
        """See `ports`."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._send_posted()
            # Rounded up: poll takes whole milliseconds, and 0 would spin through the last one.
            left_ms = math.ceil(1000 * max(0.0, deadline - time.monotonic()))
            ready = dict(self._poller.poll(left_ms))
            is_woken = self._bell.fileno() in ready
            if is_woken:
                self._bell.clear()
                # Again: what was posted between the sending above and the poll rang this bell.
                self._send_posted()
            for socket in self._duties.keys() & ready.keys():
                self._duties[socket]()
            came = self._drain(self._control, limits.CONTROL_DRAIN) if self._control in ready else []
            came += self._drain(self._bulk, limits.BULK_DRAIN) if self._bulk in ready else []
            if came or is_woken or time.monotonic() >= deadline:
                return came

    def wake(self) -> None:
        """See `ports`."""
        self._bell.ring()

    def close(self) -> None:
        """See `ports`. What was sent and is still on its way is given LINGER_MS."""
        self._outbox.close()
        self._bell.close()
        self._context.destroy(linger=limits.LINGER_MS)

    def _open(self, kind: int, options: dict[int, Option], control_bytes: int, bulk_bytes: int) -> None:
        """Make both sockets; the numbers are the greatest frame that each may be sent."""
        control = _tuning(
            0, control_bytes, limits.CONTROL_QUEUE, self._link.heartbeat_s, self._link.lost_after_s
        )
        bulk = _tuning(
            1,
            bulk_bytes,
            limits.bulk_queue(self._link.chunk_mib),
            limits.BULK_HEARTBEAT_S,
            limits.BULK_LOST_S,
        )
        self._control, self._bulk = self._context.socket(kind), self._context.socket(kind)
        for socket, tuning in ((self._control, control), (self._bulk, bulk)):
            self._poller.register(socket, zmq.POLLIN)
            for option, value in (options | tuning).items():
                socket.setsockopt(option, value)

    def _attend(self, socket: Socket, duty: Callable[[], None]) -> None:
        """Call `duty` whenever this socket has something."""
        self._poller.register(socket, zmq.POLLIN)
        self._duties[socket] = duty

    def _drain(self, socket: Socket, limit: int) -> list[Received]:
        came: list[Received] = []
        is_bulk = socket is self._bulk
        for _ in range(limit):
            try:
                parts = socket.recv_multipart(zmq.NOBLOCK, copy=not is_bulk)
            except zmq.Again:
                break
            # Chunks stay where zmq received them; control is small, and copying costs less than sharing.
            received = self._judge(
                [part if isinstance(part, bytes) else part.buffer for part in parts], is_bulk
            )
            came += [] if received is None else [received]
        return came

    def _post(self, peer: str, message: Message) -> bool:
        # Packed here, so that a message that cannot be sent raises in the thread that made it.
        if self._outbox.put((peer, pack(message))):
            return True
        self.dropped["outbox"] += 1
        return False

    def _send_posted(self) -> None:
        for peer, body in self._outbox.take():
            self._transmit(peer, body)

    def _write(self, route: list[bytes], body: Body, session: bytes) -> bool:
        # Copied by zmq: the caller may write over a snapshot's buffer as soon as this returns.
        frames = [*route, *seal(body, session=session, sequence=next(self._sequence))]
        try:
            (self._bulk if body.is_bulk else self._control).send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            self.dropped["full" if error.errno == zmq.EAGAIN else "unreachable"] += 1
            return False
        return True

    def _transmit(self, peer: str, body: Body) -> bool:
        raise NotImplementedError

    def _judge(self, frames: list[Buffer], is_bulk: bool) -> Received | None:
        raise NotImplementedError


class TrainerPort(_SocketPair[tuple[str, Message]]):
    """The trainer's end; see `ports.Port`."""

    def __init__(self, link: LinkConfig, keys: Keys | None = None) -> None:
        address = parse("link.bind", link.bind)
        require_keys("link.bind", link.bind, address, has_keys=keys is not None)
        super().__init__(link)
        self.session = secrets.token_bytes(16)
        self._gate = TrainerGate(self.session, self.dropped)
        self._options: dict[int, Option] = {
            # A send to a peer that is gone fails, where zmq would drop it in silence.
            zmq.ROUTER_MANDATORY: 1,
            # A selector that reconnects keeps its name, though its dead connection was not noticed yet.
            zmq.ROUTER_HANDOVER: 1,
            zmq.IPV6: int(address.is_ipv6),
        }
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            if keys is not None:
                self._admit_only(keys)
            self._open(zmq.ROUTER, self._options, limits.CONTROL_FRAME_BYTES, limits.FETCH_FRAME_BYTES)
            self.endpoints = self._bind(address)
            undo.pop_all()

    def send(self, peer: str, message: Message) -> bool:
        """See `ports`."""
        return self._transmit(peer, pack(message))

    def post(self, peer: str, message: Message) -> bool:
        """See `ports`."""
        return self._post(peer, message)

    def refuse(self, peer: str) -> None:
        """See `ports`."""
        self._gate.refuse(peer)

    def _transmit(self, peer: str, body: Body) -> bool:
        return self._write([peer.encode()], body, self.session)

    def _judge(self, frames: list[Buffer], is_bulk: bool) -> tuple[str, Message] | None:
        # What is not ASCII becomes a name that the gate refuses, and so is never answered.
        peer = bytes(frames[0]).decode("ascii", "replace")
        message, answer = self._gate.judge(peer, frames[1:], is_bulk=is_bulk)
        if answer is not None:
            self.send(peer, answer)
        return None if message is None else (peer, message)

    def _bind(self, address: Address) -> Endpoints:
        refuse_ipc_in_use(self._link.bind, address)
        for tries_left in reversed(range(limits.FREE_PAIR_TRIES if address.is_free_choice else 1)):
            failing, bulk = address.endpoints()
            try:
                self._control.bind(failing)
                control = self._control.getsockopt_string(zmq.LAST_ENDPOINT)
                if address.is_free_choice:
                    bulk = replace(address, port=int(control.rpartition(":")[2])).endpoints().bulk
                failing = bulk
                self._bulk.bind(failing)
                break
            except zmq.ZMQError as error:
                if not tries_left:
                    raise bind_error(self._link.bind, failing, error.errno or 0) from None
                # The neighbour is taken: give this port back, and the system chooses another.
                if failing == bulk:
                    self._control.unbind(control)
        return Endpoints(control, bulk)

    def _admit_only(self, keys: Keys) -> None:
        """Encrypt, and answer zmq's question (ZAP, RFC 27) whether a key may come in, without a thread."""
        self._options |= {zmq.CURVE_SERVER: 1} | _own_keys(keys)
        door: Socket = self._context.socket(zmq.REP)
        door.bind("inproc://zeromq.zap.01")

        def answer() -> None:
            version, request, _domain, _address, _routing_id, mechanism, *credentials = door.recv_multipart()
            is_known = mechanism == b"CURVE" and credentials == [z85.decode(keys.peer)]
            self.dropped.update([] if is_known else ["key"])
            door.send_multipart(
                [version, request, *((b"200", b"OK") if is_known else (b"400", b"unknown key")), b"", b""]
            )

        self._attend(door, answer)


class SelectorPort(_SocketPair[Message]):
    """The selector's end; see `ports.OnePeerPort`. It sends nothing but Hello while it has no session."""

    def __init__(
        self, endpoints: Endpoints, selector_id: str, link: LinkConfig, keys: Keys | None = None
    ) -> None:
        addresses = [parse("link.connect", endpoint) for endpoint in endpoints]
        require_keys("link.connect", endpoints.control, addresses[0], has_keys=keys is not None)
        require_name(selector_id)
        super().__init__(link)
        self._gate = SelectorGate(self.dropped)
        options: dict[int, Option] = {
            zmq.ROUTING_ID: selector_id.encode(),
            zmq.IPV6: int(addresses[0].is_ipv6),
        }
        options |= {zmq.RECONNECT_IVL: limits.RECONNECT_MS, zmq.RECONNECT_IVL_MAX: limits.MAX_RECONNECT_MS}
        if keys is not None:
            options |= {zmq.CURVE_SERVERKEY: keys.peer.encode()} | _own_keys(keys)
        self._open(zmq.DEALER, options, limits.CONTROL_FRAME_BYTES, limits.CHUNK_FRAME_BYTES)
        self._count_failed_handshakes()
        try:
            self._control.connect(endpoints.control)
            self._bulk.connect(endpoints.bulk)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                "link.connect", endpoints.control, f"cannot be used ({error})", "Check the address"
            ) from None

    @property
    def session(self) -> bytes:
        """See `ports`."""
        return self._gate.session

    @session.setter
    def session(self, session: bytes) -> None:
        self._gate.session = session

    def send(self, message: Message) -> bool:
        """See `ports`."""
        return self._transmit("", pack(message))

    def post(self, message: Message) -> bool:
        """See `ports`."""
        return self._post("", message)

    def _transmit(self, peer: str, body: Body) -> bool:
        if self.session == NO_SESSION and body.code != CODES[Hello]:
            self.dropped["no-session"] += 1
            return False
        return self._write([], body, self.session)

    def _judge(self, frames: list[Buffer], is_bulk: bool) -> Message | None:
        return self._gate.judge(frames, is_bulk=is_bulk)

    def _count_failed_handshakes(self) -> None:
        """A wrong key would show nowhere: zmq only tries again."""
        failed = (
            zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        )
        monitor = self._control.get_monitor_socket(failed)

        def count() -> None:
            monitor.recv_multipart()
            self.dropped["handshake"] += 1

        self._attend(monitor, count)
