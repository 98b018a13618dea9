"""The common part of both ends of the wire over ZeroMQ. It does not know the meaning of messages.

    trainer    ROUTER control, ROUTER bulk   (bind; trainer_port.py)
    selector   DEALER control, DEALER bulk   (connect; selector_port.py)

Two pairs, because a heartbeat queued after a snapshot would wait for the whole snapshot. Flow control: the
trainer never waits for a peer. A selector gets leases by credit and pulls snapshot chunks by credit, so a
full queue means that the peer has stopped reading. Then `send` drops the message and returns False, and the
ledger grants the lease again. Nothing that a peer sends makes `receive` raise.

A port belongs to one thread; `post` and `wake` are for the others. zmq's own threads do the network, one for
each pair.
"""

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import zmq

from sbpipe.config import LinkConfig
from sbpipe.link import limits
from sbpipe.link.binding import Keys
from sbpipe.link.frames import Body, pack, seal
from sbpipe.link.messages import Message
from sbpipe.link.outbox import Bell, Outbox

Received = TypeVar("Received")
Socket = zmq.Socket[bytes]
Option = int | bytes
# An int: comparing with Python's flag enum takes half as long as the query itself.
_READABLE = int(zmq.POLLIN)


def new_key_pair() -> tuple[str, str]:
    """A fresh public and secret key."""
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def public_key_of(secret: str) -> str:
    """The public key of a secret one; ValueError if that is not a key."""
    return zmq.curve_public(secret.encode()).decode()


def own_keys(keys: Keys) -> dict[int, Option]:
    """The options by which a socket proves who it is."""
    return {zmq.CURVE_PUBLICKEY: keys.public.encode(), zmq.CURVE_SECRETKEY: keys.secret.encode()}


def _liveness(lost_s: float) -> dict[int, Option]:
    """Let the kernel detect a connection whose other end is gone without closing it.

    Not zmq's own heartbeats (ZMTP PING): libzmq 4.3.5 aborts when one meets a connection that is being reset.
    A process that hangs above TCP is detected by the heartbeats of `messages`.
    """
    probe_s = max(1, math.ceil(lost_s / 4))
    return {
        zmq.TCP_KEEPALIVE: 1,
        zmq.TCP_KEEPALIVE_IDLE: probe_s,
        zmq.TCP_KEEPALIVE_INTVL: probe_s,
        zmq.TCP_KEEPALIVE_CNT: 3,
        zmq.TCP_MAXRT: int(4000 * probe_s),
        zmq.HANDSHAKE_IVL: limits.HANDSHAKE_MS,
        zmq.LINGER: limits.LINGER_MS,
    }


class SocketPair(Generic[Received]):
    """Two sockets, a bell, an outbox, and the polling of all of them."""

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
        self._duties: dict[Any, Callable[[list[bytes]], None]] = {}
        self._look_at = math.inf

    def receive(self, timeout_s: float) -> list[Received]:
        """See `ports`."""
        deadline = time.monotonic() + timeout_s
        bell = self._bell.fileno()
        while True:
            self._send_posted()
            # Rounded up: poll takes whole milliseconds, and 0 would spin through the last one.
            wait_until = min(deadline, self._look_at)
            left_ms = math.ceil(1000 * max(0.0, wait_until - time.monotonic()))
            ready = [which for which, _ in self._poller.poll(left_ms)]
            is_woken = bell in ready
            if is_woken:
                self._bell.clear()
                # Once more: messages posted between the sending above and the poll rang this bell.
                self._send_posted()
            for socket in ready:
                if socket in self._duties:
                    self._attend_to(socket)
            came = self._drain(self._control, limits.CONTROL_DRAIN) if self._control in ready else []
            came += self._drain(self._bulk, limits.BULK_DRAIN) if self._bulk in ready else []
            now = time.monotonic()
            # Last: messages that were just read count for their connections.
            came += self._look_around(now)
            if came or is_woken or now >= deadline:
                return came

    def wake(self) -> None:
        """See `ports`."""
        self._bell.ring()

    def close(self) -> None:
        """See `ports`. Messages still on their way get LINGER_MS."""
        self._outbox.close()
        self._bell.close()
        self._context.destroy(linger=limits.LINGER_MS)

    def _open(self, kind: int, options: dict[int, Option], frame_bytes: tuple[int, int], unread: int) -> None:
        """Make both sockets; `frame_bytes` is the largest frame that each accepts, `unread` its receive
        queue.
        """
        bulk_queue = limits.bulk_queue(self._link.chunk_mib)
        queues = ((limits.CONTROL_QUEUE, unread), (bulk_queue, bulk_queue))
        self._control, self._bulk = self._context.socket(kind), self._context.socket(kind)
        for thread, socket in enumerate((self._control, self._bulk)):
            tuning: dict[int, Option] = {
                # Each pair on its own thread of zmq: a snapshot being sent must not delay a heartbeat.
                zmq.AFFINITY: 1 << thread,
                zmq.MAXMSGSIZE: frame_bytes[thread],
                zmq.SNDHWM: queues[thread][0],
                zmq.RCVHWM: queues[thread][1],
            }
            self._poller.register(socket, zmq.POLLIN)
            for option, value in (options | tuning | _liveness(self._link.lost_after_s)).items():
                socket.setsockopt(option, value)

    def _attend(self, socket: Socket, duty: Callable[[list[bytes]], None]) -> None:
        """Call `duty` with every message of this socket."""
        self._poller.register(socket, zmq.POLLIN)
        self._duties[socket] = duty

    def _attend_to(self, socket: Socket) -> None:
        for _ in range(limits.DUTY_DRAIN):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._duties[socket](frames)

    def _monitor(self, socket: Socket, events: int, duty: Callable[[int], None]) -> None:
        """Call `duty` with each of these events of a socket."""
        # The first two bytes of zmq's message are the number of the event.
        self._attend(
            socket.get_monitor_socket(events), lambda frames: duty(int.from_bytes(frames[0][:2], "little"))
        )

    def _look_around(self, now: float) -> list[Received]:
        """Messages about other events; called whenever `receive` wakes."""
        return []

    def _drain(self, socket: Socket, limit: int) -> list[Received]:
        came: list[Received] = []
        is_bulk = socket is self._bulk
        for _ in range(limit):
            # Queried, not tried: an exception of zmq costs as much as a message.
            if not int(socket.getsockopt(zmq.EVENTS)) & _READABLE:
                break
            try:
                received = self._take(socket, is_bulk)
            except zmq.Again:
                break
            if received is not None:
                came.append(received)
        return came

    def _post(self, peer: str, message: Message) -> bool:
        # Packed here, so that an invalid message raises in the thread that made it.
        if self._outbox.put((peer, pack(message))):
            return True
        self.dropped["outbox"] += 1
        return False

    def _send_posted(self) -> None:
        if self._outbox.is_empty:
            return
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

    def _take(self, socket: Socket, is_bulk: bool) -> Received | None:
        """The next message, None if it is not to be passed on; zmq.Again if there is none."""
        raise NotImplementedError
