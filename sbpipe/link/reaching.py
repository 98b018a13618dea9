"""Why no trainer answers at an address, and what to check. It must not know zmq, keys or roles.

zmq retries silently: a name that does not resolve, a closed port and a firewall all look like a trainer that
has not started yet. A process that waits for a trainer asks here.
"""

import socket

from sbpipe.errors import ConfigError
from sbpipe.link.addresses import AUTO, Address, parse
from sbpipe.link.connection import locate

_CONNECT_S = 2.0


def why_silent(connect: str) -> str:
    """Why the trainer at `link.connect` cannot be reached from here; "" if unknown."""
    if connect == AUTO:
        return ""
    try:
        address = parse("link.connect", locate(connect).control)
    except ConfigError as error:
        return str(error)
    return _fault_of(address) if address.scheme == "tcp" else ""


def _fault_of(address: Address) -> str:
    host, port = address.host.strip("[]"), address.port
    ports = f"{port} and {port + 1}"
    try:
        with socket.create_connection((host, port), _CONNECT_S):
            pass
    except socket.gaierror as error:
        return (
            f"the name {host} does not resolve here ({error.strerror}). Check its spelling, and that the "
            "trainer's host, pod or Service is there; in Kubernetes, a name of another namespace ends in "
            ".NAMESPACE"
        )
    except ConnectionRefusedError:
        return (
            f"{host} refuses port {port}: no trainer listens there now. Check that it runs, its port, and "
            "that its --bind is tcp://0.0.0.0, not 127.0.0.1"
        )
    except OSError as error:
        return (
            f"{host} cannot be reached at port {port} ({error.strerror or error}). Check that ports {ports} "
            "are open between these hosts (firewall, network policy, security group)"
        )
    return (
        f"port {port} of {host} is open, but no trainer answers behind it. Check that it runs, and that a "
        "Service or forwarded port leads to it"
    )
