"""Whether anything that speaks zmq's protocol answers at an address: asked when handshakes fail.

A forwarded port (a container's, a tunnel's, a load balancer's) takes connections also while nobody is behind
it, and to zmq that looks like a trainer with another key. This knows neither keys nor messages.
"""

import socket

from sbpipe.link.addresses import Address
from sbpipe.link.limits import GREETING_S

_SIGNATURE_BYTES = 10
_FIRST, _LAST = 0xFF, 0x7F


def is_greeted(address: Address) -> bool:
    """Whether it sends ZMTP's signature to who connects; a Unix socket, never forwarded, is not asked."""
    if address.scheme == "ipc":
        return True
    try:
        with socket.create_connection((address.host.strip("[]"), address.port), GREETING_S) as connection:
            signature = connection.recv(_SIGNATURE_BYTES, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(signature) == _SIGNATURE_BYTES and (signature[0], signature[-1]) == (_FIRST, _LAST)
