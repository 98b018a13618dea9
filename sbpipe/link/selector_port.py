"""The selector's end of the wire: one trainer, dialled again whenever the connection breaks.
Knows no loop.
"""

import math
import secrets
import time

import zmq

from sbpipe.config import LinkConfig
from sbpipe.errors import ConfigError
from sbpipe.link import limits
from sbpipe.link.addresses import Endpoints, parse
from sbpipe.link.binding import Keys, require_keys, require_name
from sbpipe.link.doorkeeper import FarEnd
from sbpipe.link.frames import Body, Buffer, pack
from sbpipe.link.gate import SelectorGate
from sbpipe.link.greeting import is_greeted
from sbpipe.link.messages import NO_SESSION, Hello, Message, NewKey
from sbpipe.link.private import require_private
from sbpipe.link.schema import CODES
from sbpipe.link.sockets import Option, Socket, SocketPair, own_keys

_OTHER_FAILURES = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | _OTHER_FAILURES | zmq.EVENT_DISCONNECTED
)


class SelectorPort(SocketPair[Message]):
    """The selector's end; see `ports.OnePeerPort`. It sends nothing but Hello while it has no session.

    It dials with a new route each time, because to the trainer the old one may still seem alive. The bulk
    connection is opened by the first message for it: a selector that shares memory has none. What a trainer
    can make it hold is limited: unread messages, a frame, and a message that never ends.
    """

    def __init__(
        self, endpoints: Endpoints, selector_id: str, link: LinkConfig, keys: Keys | None = None
    ) -> None:
        address = parse("link.connect", endpoints.control)
        require_keys("link.connect", endpoints.control, address, has_keys=keys is not None)
        if address.scheme == "ipc":
            require_private("link.connect", endpoints.control, address.host)
        require_name(selector_id)
        super().__init__(link)
        self.refusal = ""
        self._excess = ""
        """Why the trainer was cut off: a later handshake does not clear it."""
        self._dial_at = math.inf
        self._endpoints = endpoints
        self._gate = SelectorGate(self.dropped)
        self._dialled: dict[Socket, str] = {}
        self._is_up = False
        self._failures = {"refused": 0, "closed": 0}
        options: dict[int, Option] = {
            zmq.IPV6: int(address.is_ipv6),
            zmq.RECONNECT_IVL: limits.RECONNECT_MS,
            zmq.RECONNECT_IVL_MAX: limits.MAX_RECONNECT_MS,
        }
        if keys is not None:
            options |= {zmq.CURVE_SERVERKEY: keys.peer.encode()} | own_keys(keys)
        frame_bytes = (limits.CONTROL_FRAME_BYTES, limits.chunk_frame_bytes(link.chunk_mib))
        self._open(zmq.DEALER, options, frame_bytes, limits.UNREAD_QUEUE)
        self._far_end: FarEnd | None = None
        self._far_end_look_at = 0.0
        if address.scheme == "tcp":
            ports = [parse("link.connect", endpoint).port for endpoint in endpoints]
            unfinished = (limits.MAX_UNFINISHED_CONTROL, 2 * frame_bytes[1])
            self._far_end = FarEnd(dict(zip(ports, unfinished, strict=True)))
        self._monitor(self._control, _EVENTS, self._note)
        self._monitor(self._bulk, zmq.EVENT_DISCONNECTED, self._note)
        self._dial()

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
        if body.is_bulk and self._bulk not in self._dialled:
            self._connect(self._bulk, self._endpoints.bulk)
        return self._write([], body, self.session)

    def _take(self, socket: Socket, is_bulk: bool) -> Message | None:
        first = socket.recv(zmq.NOBLOCK, copy=False)
        frames: list[Buffer] = [first.bytes]
        if first.more and is_bulk:
            # Chunks are not copied out of zmq's memory; control messages are small, and copying costs less
            # than sharing.
            frames += [part.buffer for part in socket.recv_multipart(copy=False)]
        elif first.more:
            frames += socket.recv_multipart()
        if self._far_end is not None:
            self._far_end.delivered(int(first.get(zmq.SRCFD)))
        message = self._gate.judge(frames, is_bulk=is_bulk)
        if isinstance(message, NewKey):
            # For the next dial; this connection lives until the trainer closes it.
            for one in (self._control, self._bulk):
                one.setsockopt(zmq.CURVE_SERVERKEY, message.public.encode())
            return None
        return message

    def _look_around(self, now: float) -> list[Message]:
        if self._far_end is not None and now >= self._far_end_look_at:
            self._far_end_look_at = now + limits.LOOK_S
            for reason in self._far_end.look(now).values():
                self._excess = f"the trainer at {self._endpoints.control} was cut off: {reason}"
                self.refusal = self._excess
        if now >= self._dial_at:
            self._dial_at = math.inf
            self._dial()
        self._look_at = min(self._dial_at, self._far_end_look_at if self._far_end else math.inf)
        return []

    def _dial(self) -> None:
        for socket, endpoint in self._dialled.items():
            socket.disconnect(endpoint)
        # The trainer does not know the new route: this side must say hello again.
        self.session = NO_SESSION
        self._dialled, self._is_up = {}, False
        # Both connections share one unguessable route, by which the trainer knows whose bulk connection it
        # is.
        self._route = secrets.token_hex(16).encode()
        self._connect(self._control, self._endpoints.control)

    def _connect(self, socket: Socket, endpoint: str) -> None:
        socket.setsockopt(zmq.ROUTING_ID, self._route)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                "link.connect", endpoint, f"cannot be used ({error})", "Check the address"
            ) from None
        self._dialled[socket] = endpoint

    def _note(self, event: int) -> None:
        """Handle an event of a connection."""
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._is_up, self.refusal = True, self._excess
            self._failures = dict.fromkeys(self._failures, 0)
        elif event == zmq.EVENT_DISCONNECTED and self._is_up:
            # Not at once: the last messages of the trainer, perhaps a goodbye, are still to be read.
            self._dial_at = self._look_at = time.monotonic() + limits.LAST_WORDS_S
        elif event != zmq.EVENT_DISCONNECTED:
            self.dropped["handshake"] += 1
            is_refused = event == zmq.EVENT_HANDSHAKE_FAILED_AUTH
            self._failures["refused" if is_refused else "closed"] += 1
            self._judge_failures()
            if is_refused:
                # zmq would not retry, and the key may be accepted a moment later.
                self._dial_at = self._look_at = time.monotonic() + limits.REFUSED_S

    def _judge_failures(self) -> None:
        where = self._endpoints.control
        if self._failures["refused"] >= limits.MAX_REFUSALS:
            self.refusal = (
                f"the trainer at {where} refused this key: it was revoked, or is of another trainer. On the "
                "trainer's host, make one with `sbpipe keys DIR add NAME`, and give the file to --keys"
            )
        elif self._failures["closed"] and not is_greeted(parse("link.connect", where)):
            # A forwarded port without a trainer behind it says nothing about keys: keep waiting.
            self._failures["closed"] = 0
        elif self._failures["closed"] >= limits.MAX_CLOSED:
            self.refusal = (
                f"what listens at {where} is not the trainer of this key, or has another one by now. Give "
                "--connect RUN_DIR, or the key file that lies beside the trainer.key it uses to --keys"
            )
