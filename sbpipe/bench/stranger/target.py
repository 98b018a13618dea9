"""The targets that a stranger tries to reach. Plain data, passed to its process as JSON."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Target:
    """Everything of a run, or of the control, that can be reached; missing things are left out."""

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()
    """On 127.0.0.1."""

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Target":
        """What `to_json` made."""
        return cls(**{name: tuple(values) for name, values in json.loads(text).items()})


@dataclass
class Tried:
    """The outcome; all numbers but the first two and the time must be 0."""

    messages: int = 0
    connections: int = 0
    """Over TCP, accepted by the kernel of the other side."""
    cpu_s: float = 0.0
    reached: int = 0
    """Folders listed, files opened, sockets connected, processes signalled."""
    leaked_bytes: int = 0
    """Received over TCP beyond zmq's greeting, which is the same of every zmq program."""
