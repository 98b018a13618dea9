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
CHUNK_FRAME_BYTES = MAX_CHUNK_BYTES + SLACK_BYTES

MIN_KEEP = 1e-9

# Queues, in messages, for each peer; and what one `receive` takes at most.
CONTROL_QUEUE = 1000
BULK_QUEUE_MIB = 128
MAX_POSTED = 10_000
CONTROL_DRAIN = 256
BULK_DRAIN = 32

# Peers: bad messages until one is refused; peers remembered (a hostile one that invents names pushes out old
# ones, not the memory).
MAX_STRIKES = 3
MAX_PEERS = 4096

# Times. A pong of the bulk pair waits behind chunks, so it is given longer than one of control.
LINGER_MS = 300
BULK_HEARTBEAT_S = 5.0
BULK_LOST_S = 30.0
RECONNECT_MS = 100
MAX_RECONNECT_MS = 1000

# Port 0: how often a free port whose neighbour is free too is looked for.
FREE_PAIR_TRIES = 50


def bulk_queue(chunk_mib: float) -> int:
    """Chunks that may wait for one peer: about BULK_QUEUE_MIB of memory."""
    return min(64, max(4, int(BULK_QUEUE_MIB / chunk_mib)))
