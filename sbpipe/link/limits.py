"""All limits of the wire in one place: sizes, counts, times. It knows nothing else."""

# One message.
MAX_CANDIDATES = 1 << 20
MAX_HISTORY = 1 << 20
MAX_CLASSES = 1 << 20
MAX_CHUNK_BYTES = 64 << 20
MAX_SNAPSHOT_BYTES = 1 << 40
MAX_COUNT = 1 << 53
# Thirty years: sums of claimed times stay exact to well below a second.
MAX_TOTAL_S = 1e9
# The range of the settings: with less, a welcome could keep a selector busy with heartbeats.
MIN_PERIOD_S = 0.01
MAX_PERIOD_S = 86_400.0
MAX_HEADER_BYTES = 64 << 10
MAX_WELCOME_BYTES = 1 << 20
MAX_CONFIG = 1 << 18
MAX_REASON = 4096
MAX_ENTRIES = 64

# One frame as zmq sees it: zmq cuts the connection of a peer that sends a larger one. The slack is for CURVE
# and framing.
SLACK_BYTES = 4096
CONTROL_FRAME_BYTES = max(4 * MAX_CANDIDATES, 4 * MAX_HISTORY, MAX_WELCOME_BYTES) + SLACK_BYTES
FETCH_FRAME_BYTES = MAX_HEADER_BYTES + SLACK_BYTES

MIN_KEEP = 1e-9

# Queues, in messages, for each peer; and the most that one `receive` takes. The trainer's receive queue is
# short: a peer that sends too fast must fill its own memory, not the trainer's. Few messages are taken at
# once: peers that were answered can work while the next messages are handled, and a thread that needs the
# lock waits only for these few.
CONTROL_QUEUE = 1000
UNREAD_QUEUE = 16
BULK_QUEUE_MIB = 128
MAX_POSTED = 10_000
CONTROL_DRAIN = 16
BULK_DRAIN = 32
DUTY_DRAIN = 256

# Peers: bad messages before one is refused; connections remembered (a hostile peer that invents routes evicts
# those without a name, and does not grow memory).
MAX_STRIKES = 3
MAX_PEERS = 4096

# Connections over TCP. zmq bounds a frame but not the number of frames in a message, so the bytes that a
# connection may send without completing a message are bounded: the first number until it is granted a lease,
# then what the answer to that lease may take.
MAX_UNFINISHED_BYTES = 256 << 10
# What a selector accepts from a trainer before a message is complete: more than the longest message.
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
# From announcing a new key to listening under it: the message must have been sent by then.
ROTATION_S = 1.0

# Failed handshakes in a row before a selector gives up: a refusal is definite, but a connection that was only
# closed may be a trainer that is just ending.
MAX_REFUSALS = 3
REFUSED_S = 1.0
LAST_WORDS_S = 0.05
MAX_CLOSED = 8

# Port 0: how often to try for a free port whose neighbour is free too.
FREE_PAIR_TRIES = 50


def bulk_queue(chunk_mib: float) -> int:
    """The most chunks queued for one peer: about BULK_QUEUE_MIB of memory."""
    return min(64, max(4, int(BULK_QUEUE_MIB / chunk_mib)))


def chunk_frame_bytes(chunk_mib: float) -> int:
    """The largest frame with a piece of a snapshot, for a selector that asks for pieces of this size."""
    return int(chunk_mib * 2**20) + MAX_HEADER_BYTES + SLACK_BYTES


def answer_bytes(num_candidates: int) -> int:
    """The most bytes of the answer to a lease of `num_candidates`, encrypted."""
    arrays = 3 * 4 * num_candidates + 4 * MAX_CLASSES
    return MAX_HEADER_BYTES + MAX_UNFINISHED_BYTES + arrays + arrays // 8
