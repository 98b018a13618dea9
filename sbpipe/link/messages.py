"""The messages between trainer and selectors. It must not know how they are packed, nor what carries them.

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

# The session of a selector that has none yet: only a Hello may carry it.
NO_SESSION = bytes(16)


@dataclass(frozen=True)
class Hello:
    """A selector introduces itself; `selector_id` is new for every process."""

    selector_id: str
    host: str
    pid: int
    device: str
    precision: str
    version: str


@dataclass(frozen=True)
class Welcome:
    """The trainer admits a selector; the prefix of this message has the session.

    `config` is JSON; `shared_memory` names the block of the snapshots, "" = fetch them. It names no folder:
    where a selector writes is its own user's choice. `is_channels_last` is the layout of convolution kernels
    in snapshots.
    """

    config: str
    shared_memory: str
    heartbeat_s: float
    lost_after_s: float
    is_channels_last: bool = False


@dataclass(frozen=True)
class Ready:
    """The selector has built everything.

    `fingerprints` are of what both sides must share; `pulls_weights` = it shares no memory with the trainer;
    `precision` is the one in use, where Hello had the one asked for.
    """

    fingerprints: dict[str, str]
    pulls_weights: bool
    precision: str


@dataclass(frozen=True)
class Reject:
    """The trainer will not work with this selector. Never changes: every protocol version can read it."""

    reason: str


@dataclass(frozen=True)
class Fenced:
    """The session is another one: the selector must say hello again."""


@dataclass(frozen=True)
class Heartbeat:
    """Alive; `progress` grows during work, which distinguishes a busy process from a hung one.

    A trainer, or a selector that has built nothing yet, has no `stats`.
    """

    progress: int
    stats: SelectorStats | None = None


@dataclass(frozen=True)
class Announce:
    """A newer snapshot of a part of the weights is available."""

    version: int
    num_bytes: int
    part: Part = Part.WHOLE


@dataclass(frozen=True)
class Fetch:
    """The selector requests one piece of a snapshot: one credit."""

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
    """The trainer changes its own key and closes every connection: connect again, to this key."""

    public: str


@dataclass(frozen=True)
class Departed:
    """Never on the wire: the trainer's own port reports that a peer's connection has ended."""

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
