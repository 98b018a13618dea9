"""The trainer's end of the wire: admits, names and cuts connections. Knows no loop.

Nothing is read from a peer before it is authenticated: over TCP by a key (CURVE, by RFC 27), over a Unix
socket by the private folder of the socket. A peer is a connection. What it calls itself becomes its name,
which another connection cannot take away. Nothing that a peer sends makes `receive` raise.
"""

import contextlib
import logging
import math
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

import zmq
from zmq.utils import z85

from sbpipe.config import LinkConfig
from sbpipe.link import limits
from sbpipe.link.addresses import Address, Endpoints, parse
from sbpipe.link.binding import Keys, bind_error, refuse_ipc_in_use, require_keys
from sbpipe.link.doorkeeper import Doorkeeper
from sbpipe.link.frames import Body, pack
from sbpipe.link.gate import TrainerGate, Verdict
from sbpipe.link.keyring import Keyring
from sbpipe.link.messages import Departed, Heartbeat, Hello, Message, NewKey
from sbpipe.link.private import require_private
from sbpipe.link.sockets import Option, Socket, SocketPair, own_keys
from sbpipe.records import Lease

log = logging.getLogger("sbpipe.link")

_USER, _ADDRESS = "User-Id", "Peer-Address"


class TrainerPort(SocketPair[tuple[str, Message]]):
    """The trainer's end; see `ports.Port`."""

    def __init__(self, link: LinkConfig, keyring: Keyring | None = None) -> None:
        address = parse("link.bind", link.bind)
        if address.scheme == "ipc":
            require_private("link.bind", link.bind, address.host)
        require_keys("link.bind", link.bind, address, has_keys=keyring is not None)
        super().__init__(link)
        self.session = secrets.token_bytes(16)
        self._gate = TrainerGate(self.session, self.dropped)
        self._keyring = keyring
        self._doorkeeper: Doorkeeper | None = None
        # By route: the descriptor and key of a connection, to cut it. By name: why it has ended.
        self._descriptors: dict[bytes, tuple[int, str]] = {}
        self._gone: dict[str, str] = {}
        self._warned: dict[str, float] = {}
        self._to_bind: list[tuple[Socket, str]] = []
        self._rotate_at = math.inf
        self.on_rotation: Callable[[Keys], None] = lambda keys: None
        """Called with a new key pair of the trainer once it is in use."""
        options: dict[int, Option] = {
            # A send to a peer that is gone fails; by default zmq would drop it silently.
            zmq.ROUTER_MANDATORY: 1,
            zmq.IPV6: int(address.is_ipv6),
        }
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            if address.scheme == "ipc":
                options[zmq.IPC_FILTER_UID] = os.geteuid()
            if keyring is not None:
                options |= {zmq.CURVE_SERVER: 1} | own_keys(keyring.keys)
                self._answer_zap()
            frame_bytes = (limits.CONTROL_FRAME_BYTES, limits.FETCH_FRAME_BYTES)
            self._open(zmq.ROUTER, options, frame_bytes, limits.UNREAD_QUEUE)
            self._tell_failed_handshakes()
            self.endpoints = self._bind(address)
            if address.scheme == "tcp":
                ports = {int(endpoint.rpartition(":")[2]) for endpoint in self.endpoints}
                self._doorkeeper, self._look_at = Doorkeeper(ports), 0.0
            undo.pop_all()

    def send(self, peer: str, message: Message) -> bool:
        """See `ports`."""
        if isinstance(message, Lease):
            self._expect_answer(peer, message)
        return self._transmit(peer, pack(message))

    def post(self, peer: str, message: Message) -> bool:
        """See `ports`."""
        return self._post(peer, message)

    def refuse(self, peer: str) -> None:
        """See `ports`."""
        self._gate.refuse(peer)

    def release(self, peer: str) -> None:
        """See `ports`."""
        self._gate.release(peer)

    def _transmit(self, peer: str, body: Body) -> bool:
        route = self._gate.route_of(peer)
        if route is None:
            self.dropped["unreachable"] += 1
            return False
        before = self.dropped["unreachable"]
        if self._write([route], body, self.session):
            return True
        # Control only: a peer that shares memory has no bulk connection. A full queue does not mean that it
        # is gone.
        if self.dropped["unreachable"] > before and not body.is_bulk:
            self._gone[peer] = "its connection is gone"
            self._look_at = 0.0
        return False

    # --- receiving --------------------------------------------------------------------------------

    def _take(self, socket: Socket, is_bulk: bool) -> tuple[str, Message] | None:
        first = socket.recv(zmq.NOBLOCK, copy=False)
        route, frames = first.bytes, _rest_of(socket, first)
        if self._doorkeeper is not None and not self._is_welcome(first, route):
            self.dropped["revoked"] += 1
            return None
        verdict = self._gate.judge(route, frames, is_bulk=is_bulk)
        if verdict.holder is not None and not self._reaches(verdict.holder):
            # The connection that had this name is gone, so the name is free.
            self._gate.release(self._gate.name_of(verdict.holder))
            verdict = self._gate.judge(route, frames, is_bulk=is_bulk)
        return self._handed_on(route, verdict)

    def _handed_on(self, route: bytes, verdict: Verdict) -> tuple[str, Message] | None:
        if verdict.answer is not None:
            self._write([route], pack(verdict.answer), self.session)
        if self._gate.is_refused(route):
            self._dismiss(route)
        if verdict.message is None:
            return None
        if isinstance(verdict.message, Hello):
            # What was to be reported of an earlier connection is reported already, or void.
            self._gone.pop(verdict.peer, None)
        return verdict.peer, verdict.message

    def _is_welcome(self, first: zmq.Frame, route: bytes) -> bool:
        """Note the connection of a message; returns whether its key is still accepted."""
        assert self._doorkeeper is not None
        descriptor, key = int(first.get(zmq.SRCFD)), str(first.get(_USER))
        self._doorkeeper.delivered(descriptor)
        if route not in self._descriptors and len(self._descriptors) > limits.MAX_PEERS:
            self._descriptors.pop(next(iter(self._descriptors)))
        self._descriptors[route] = descriptor, key
        if self._keyring is None or key in self._keyring.allowed:
            return True
        self._doorkeeper.dismiss(descriptor)
        return False

    def _reaches(self, route: bytes) -> bool:
        return self._write([route], pack(Heartbeat(0)), self.session)

    def _expect_answer(self, peer: str, lease: Lease) -> None:
        route = self._gate.route_of(peer)
        if self._doorkeeper is not None and route in self._descriptors:
            self._doorkeeper.allow(self._descriptors[route][0], limits.answer_bytes(lease.num_candidates))

    def _dismiss(self, route: bytes) -> None:
        if self._doorkeeper is not None and route in self._descriptors:
            self._doorkeeper.dismiss(self._descriptors[route][0])

    # --- cutting connections ----------------------------------------------------------------------

    def _look_around(self, now: float) -> list[tuple[str, Message]]:
        if now < self._look_at:
            return []
        self._look_at = math.inf
        if self._doorkeeper is not None:
            self._look_at = now + limits.LOOK_S
            if self._keyring is not None:
                self._follow(self._keyring, now)
            for descriptor, reason in self._doorkeeper.look(now).items():
                self._was_cut(descriptor, reason)
        gone, self._gone = self._gone, {}
        for peer in gone:
            self._gate.release(peer)
        return [(peer, Departed(reason)) for peer, reason in gone.items()]

    def _follow(self, keyring: Keyring, now: float) -> None:
        """Apply changes in the key files."""
        if keyring.refresh():
            self._turn_out()
        if keyring.rotate():
            self._rotate(keyring.keys, now)
        if now >= self._rotate_at:
            self._close_doors(keyring.keys)
        if self._to_bind:
            self._open_doors(keyring.keys)

    def _turn_out(self) -> None:
        """Cut the connections of keys that were revoked."""
        assert self._doorkeeper is not None
        assert self._keyring is not None
        for route, (descriptor, key) in self._descriptors.items():
            if key not in self._keyring.allowed:
                self._doorkeeper.dismiss(descriptor)
                if peer := self._gate.name_of(route):
                    self._gone[peer] = "its key was revoked"

    def _was_cut(self, descriptor: int, reason: str) -> None:
        self.dropped["cut"] += 1
        routes = [route for route, (other, _) in self._descriptors.items() if other == descriptor]
        for route in routes:
            del self._descriptors[route]
            if peer := self._gate.name_of(route):
                self._gone.setdefault(peer, f"its connection was cut: {reason}")
        self._warn("cut", f"a connection was cut: {reason}")

    def _warn(self, about: str, text: str) -> None:
        """Log a warning, but not again for a while."""
        now = time.monotonic()
        self._warned = {key: at for key, at in self._warned.items() if now - at < limits.WARN_AGAIN_S}
        if about not in self._warned and len(self._warned) < limits.MAX_STRANGERS:
            self._warned[about] = now
            log.warning("%s", text)

    # --- another key of its own -------------------------------------------------------------------

    def _rotate(self, keys: Keys, now: float) -> None:
        """Tell all peers: zmq will close every connection of an address at which it no longer listens."""
        for peer in self._gate.names:
            self.send(peer, NewKey(keys.public))
        self._rotate_at = now + limits.ROTATION_S

    def _close_doors(self, keys: Keys) -> None:
        """Use the new pair, and stop listening under the old one."""
        self._rotate_at = math.inf
        for socket, endpoint in zip((self._control, self._bulk), self.endpoints, strict=True):
            for option, value in own_keys(keys).items():
                socket.setsockopt(option, value)
            if (socket, endpoint) not in self._to_bind:
                socket.unbind(endpoint)
                self._to_bind.append((socket, endpoint))

    def _open_doors(self, keys: Keys) -> None:
        """Listen again at the same addresses; retried later if zmq has not released them yet."""
        for door in list(self._to_bind):
            socket, endpoint = door
            try:
                socket.bind(endpoint)
                self._to_bind.remove(door)
            except zmq.ZMQError as error:
                self._warn("rotation", f"{endpoint} is not open under the new key yet ({error})")
        if not self._to_bind:
            self.on_rotation(keys)
            log.info("the trainer has a new key: who connects from now on needs it")

    # --- opening ----------------------------------------------------------------------------------

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
                # The next port is taken: release this one, and let the system choose another.
                if failing == bulk:
                    self._control.unbind(control)
        return Endpoints(control, bulk)

    def _answer_zap(self) -> None:
        """Answer zmq's authentication requests (ZAP, RFC 27) without a thread."""
        door: Socket = self._context.socket(zmq.REP)
        door.bind("inproc://zeromq.zap.01")

        def answer(frames: list[bytes]) -> None:
            version, request, _domain, address, _routing_id, mechanism, *credentials = frames
            key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" else ""
            is_known = self._keyring is not None and key in self._keyring.allowed
            if not is_known:
                self.dropped["key"] += 1
                host = address.decode("ascii", "replace")
                self._warn(
                    host,
                    f"a selector with an unknown key was turned away, from {host}. To let it in: "
                    "sbpipe keys DIR add NAME",
                )
            verdict = (b"200", b"OK", key.encode()) if is_known else (b"400", b"unknown key", b"")
            door.send_multipart([version, request, *verdict, b""])

        self._attend(door, answer)

    def _tell_failed_handshakes(self) -> None:
        """Report handshakes that fail before the peer's key is checked: it does not know this
        trainer's key.
        """

        def tell(_event: int) -> None:
            self.dropped["handshake"] += 1
            self._warn("handshake", "a connection that does not know the key of this trainer was turned away")

        self._monitor(self._control, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, tell)


def _rest_of(socket: Socket, first: zmq.Frame) -> list[bytes]:
    """The frames after the first one of a message, copied: for so few bytes cheaper than sharing."""
    frames, last = list[bytes](), first
    # A frame knows whether it is the last one; querying the socket costs as much as receiving a frame.
    while last.more:
        last = socket.recv(copy=False)
        frames.append(last.bytes)
    return frames
