"""Every number of the wire in one place: how big, how many, how long. It knows nothing else."""

# One message.
MAX_CANDIDATES = 1 << 20
MAX_HISTORY = 1 << 20
MAX_CLASSES = 1 << 20
MAX_CHUNK_BYTES = 64 << 20
MAX_SNAPSHOT_BYTES = 1 << 40
MAX_COUNT = 1 << 53
# Thirty years: what a peer claims to have taken stays far from where sums lose seconds.
MAX_TOTAL_S = 1e9
# As the settings allow: with less a welcome would keep a selector busy with heartbeats.
MIN_PERIOD_S = 0.01
MAX_PERIOD_S = 86_400.0
MAX_HEADER_BYTES = 64 << 10
MAX_WELCOME_BYTES = 1 << 20
MAX_CONFIG = 1 << 18
MAX_REASON = 4096
MAX_ENTRIES = 64

# One frame as zmq sees it: zmq cuts the connection of a peer that sends a larger one. The slack is for what
# CURVE and the framing add.
SLACK_BYTES = 4096
CONTROL_FRAME_BYTES = max(4 * MAX_CANDIDATES, 4 * MAX_HISTORY, MAX_WELCOME_BYTES) + SLACK_BYTES
FETCH_FRAME_BYTES = MAX_HEADER_BYTES + SLACK_BYTES

MIN_KEEP = 1e-9

# Queues, in messages, for each peer; and what one `receive` takes at most. The trainer's queue of what came
# is short: a peer that sends faster than it is read must fill its own memory, not the trainer's. Little is
# taken at once: who has been answered works while others' messages are taken in, and who needs a lock that is
# held meanwhile waits for no more than these.
CONTROL_QUEUE = 1000
UNREAD_QUEUE = 16
BULK_QUEUE_MIB = 128
MAX_POSTED = 10_000
CONTROL_DRAIN = 16
BULK_DRAIN = 32
DUTY_DRAIN = 256

# Peers: bad messages until one is refused; connections remembered (a hostile peer that invents routes pushes
# out those without a name, not the memory).
MAX_STRIKES = 3
MAX_PEERS = 4096

# Connections over TCP. zmq bounds a frame but not the number of frames in a message, so the bytes that a
# connection may send without completing a message are bounded: the first number until it is granted a lease,
# then what the answer to that lease may take.
MAX_UNFINISHED_BYTES = 256 << 10
# What a selector takes of a trainer before a message is complete: the longest there is, and some more.
MAX_UNFINISHED_CONTROL = 3 * CONTROL_FRAME_BYTES
# Leases that a selector holds unanswered, and their bytes: a trainer grants a few at a time.
MAX_HELD_LEASES = 256
MAX_HELD_BYTES = 16 * 4 * 2 * MAX_HISTORY
MAX_STRANGERS = 64
MAX_CONNECTIONS = 1024
MAX_FILES = 65_536
STRANGER_S = 10.0
LOOK_S = 0.25

# Times.
HANDSHAKE_MS = 5000
GREETING_S = 1.0
LINGER_MS = 300
RECONNECT_MS = 100
MAX_RECONNECT_MS = 1000
WARN_AGAIN_S = 30.0
# From telling selectors a new key to listening under it: the message must have left by then.
ROTATION_S = 1.0

# Failed handshakes in a row until a selector gives up: a refusal is certain, a connection that was only
# closed may be a trainer that is just ending.
MAX_REFUSALS = 3
REFUSED_S = 1.0
LAST_WORDS_S = 0.05
MAX_CLOSED = 8

# Port 0: how often a free port whose neighbour is free too is looked for.
FREE_PAIR_TRIES = 50


def bulk_queue(chunk_mib: float) -> int:
    """Chunks that may wait for one peer: about BULK_QUEUE_MIB of memory."""
    return min(64, max(4, int(BULK_QUEUE_MIB / chunk_mib)))


def chunk_frame_bytes(chunk_mib: float) -> int:
    """The largest frame with a piece of a snapshot, for a selector that asks for pieces of this size."""
    return int(chunk_mib * 2**20) + MAX_HEADER_BYTES + SLACK_BYTES


def answer_bytes(num_candidates: int) -> int:
    """What the answer to a lease of so many candidates may take on the wire, encrypted."""
    arrays = 3 * 4 * num_candidates + 4 * MAX_CLASSES
    return MAX_HEADER_BYTES + MAX_UNFINISHED_BYTES + arrays + arrays // 8
