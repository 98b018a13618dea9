"""What trainer and selectors say to each other. It must not know how a message is packed, nor who carries it.

selector                                trainer
   │ ── Hello ───────────────────────────▶ │   who I am
   │ ◀────────────────────────── Welcome ── │   the run and its settings               (or Reject: why not)
   │ ── Ready ───────────────────────────▶ │   fingerprints of what I built from it   (or Reject: both sides)
   │ ◀──────────────── Announce, Lease ──── │   a newer snapshot; a range of candidates
   │ ── Selection ───────────────────────▶ │   the answer to one lease
   │ ◀─ Heartbeat ──────────── Heartbeat ─▶ │   alive, and how far
   │ ◀─────────────────────────── Fenced ── │   you speak of another session: say hello again
   │ ◀─ Goodbye ──────────────── Goodbye ─▶ │   I leave, and why
   │ ══ Fetch ═══════════════════════════▶ │   bulk pair: a piece of a snapshot, please
   │ ◀════════════════════ Chunk or Gone ══ │   bulk pair: here it is, or no longer
"""

from dataclasses import dataclass

from sbpipe.records import Lease, Part, RunEnd, Selection, SelectorStats

# The session of one who has none yet: only a Hello may carry it.
NO_SESSION = bytes(16)


@dataclass(frozen=True)
class Hello:
    """A selector introduces itself; `selector_id` is also its routing id, new for every process."""

    selector_id: str
    host: str
    pid: int
    device: str
    precision: str
    version: str


@dataclass(frozen=True)
class Welcome:
    """The trainer lets a selector in; the prefix of this message tells the session.

    `config` is JSON; `shared_memory` names the block that the snapshots lie in, "" = fetch them. It names no
    folder: where a selector writes is its own user's choice. `is_channels_last` says how kernels of images
    lie in snapshots.
    """

    config: str
    shared_memory: str
    heartbeat_s: float
    lost_after_s: float
    is_channels_last: bool = False


@dataclass(frozen=True)
class Ready:
    """The selector has built everything.

    `fingerprints` are of the things that both sides must have the same; `pulls_weights` = it shares no memory
    with the trainer; `precision` is what it scores in, where Hello told what was asked for.
    """

    fingerprints: dict[str, str]
    pulls_weights: bool
    precision: str


@dataclass(frozen=True)
class Reject:
    """The trainer will not work with this selector. Frozen for ever: every protocol version can read it."""

    reason: str


@dataclass(frozen=True)
class Fenced:
    """You speak of another session: say hello again."""


@dataclass(frozen=True)
class Heartbeat:
    """Alive; `progress` grows while work is done, so that a hung process is told from a busy one.

    A trainer, or a selector that has built nothing yet, has no `stats`.
    """

    progress: int
    stats: SelectorStats | None = None


@dataclass(frozen=True)
class Announce:
    """A newer snapshot of a part of the weights can be had."""

    version: int
    num_bytes: int
    part: Part = Part.WHOLE


@dataclass(frozen=True)
class Fetch:
    """The selector asks for one piece of a snapshot: one credit."""

    version: int
    offset: int
    num_bytes: int
    part: Part = Part.WHOLE


@dataclass(frozen=True)
class Chunk:
    """One piece of a snapshot; on arrival `data` is a read-only view of the received frame, not a copy."""

    version: int
    offset: int
    total_bytes: int
    data: bytes | memoryview
    part: Part = Part.WHOLE


@dataclass(frozen=True)
class Gone:
    """That version can no longer be fetched: ask for the newest."""

    version: int
    part: Part = Part.WHOLE


@dataclass(frozen=True)
class Goodbye:
    """The sender leaves; `reason` is for people, "" = `end` says it all."""

    end: RunEnd
    reason: str = ""


@dataclass(frozen=True)
class NewKey:
    """The trainer takes another key of its own and closes every connection: connect again, to this key."""

    public: str


@dataclass(frozen=True)
class Departed:
    """Never on the wire: what the trainer's port itself says of a peer whose connection is over."""

    reason: str


Message = (
    Hello
    | Welcome
    | Ready
    | Reject
    | Fenced
    | Heartbeat
    | Announce
    | Lease
    | Selection
    | Goodbye
    | Fetch
    | Chunk
    | Gone
    | NewKey
    | Departed
)

BULK: tuple[type[Message], ...] = (Fetch, Chunk, Gone)
TO_TRAINER: tuple[type[Message], ...] = (Hello, Ready, Heartbeat, Selection, Goodbye, Fetch)
TO_SELECTOR: tuple[type[Message], ...] = (
    Welcome,
    Reject,
    Fenced,
    Heartbeat,
    Announce,
    Lease,
    Goodbye,
    Chunk,
    Gone,
    NewKey,
)
