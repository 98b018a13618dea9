"""Whether anything that speaks zmq's protocol answers at an address: checked when handshakes fail.

A forwarded port (of a container, a tunnel, a load balancer) accepts connections even if no trainer is behind
it, and to zmq that looks like a trainer with another key. This knows neither keys nor messages.
"""

import socket

from sbpipe.link.addresses import Address
from sbpipe.link.limits import GREETING_S

_SIGNATURE_BYTES = 10
_FIRST, _LAST = 0xFF, 0x7F


def is_greeted(address: Address) -> bool:
    """Whether the peer sends ZMTP's signature on connect; True for a Unix socket, which is
    never forwarded.
    """
    if address.scheme == "ipc":
        return True
    try:
        with socket.create_connection((address.host.strip("[]"), address.port), GREETING_S) as connection:
            signature = connection.recv(_SIGNATURE_BYTES, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(signature) == _SIGNATURE_BYTES and (signature[0], signature[-1]) == (_FIRST, _LAST)
