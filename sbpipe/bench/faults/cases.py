"""Every fault of the bench, by name. How each is done stands in `processes`, `surroundings` and `links`."""

import resource
import signal

from sbpipe.bench.faults import links, processes, surroundings
from sbpipe.bench.faults.fault import Fault
from sbpipe.bench.faults.subject import NAN, SWITCHED

GONE = r"(?<!  )lost|starting it again|ended with code"
"""Not the line of a verdict that says what was lost."""
DAMAGED = r"digest does not match.*going on from the one before it"
_TINY_MEMORY = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64k t /dev/shm && exec "$@"', "sh")

FAULTS = [
    Fault("selector killed", processes.killed("selector"), GONE, is_quick=True),
    Fault("selector stopped for a while", processes.stopped("selector"), "silent"),
    Fault("selector spins", processes.spinning, "without progress", changes=SWITCHED),
    Fault("selector 20 x slower", processes.slowed),
    Fault(
        "selector out of memory at its start",
        processes.limited_at_start("selector", resource.RLIMIT_AS, processes.little_memory),
        GONE,
    ),
    Fault(
        "selector out of file descriptors at its start",
        processes.limited_at_start("selector", resource.RLIMIT_NOFILE, processes.next_file),
        GONE,
    ),
    Fault("selector killed at its start", processes.killed_at_start("selector"), "starting it again"),
    Fault("selector killed at the end", processes.killed_at_the_end("selector"), ""),
    Fault("selector killed again and again", processes.storm, GONE),
    Fault("trainer killed", processes.killed("trainer"), GONE, is_quick=True),
    Fault("trainer stopped for a while", processes.stopped("trainer"), ""),
    Fault(
        "trainer out of file descriptors for a while",
        processes.out_of_files_for_a_while,
        processes.NO_FILES,
    ),
    Fault(
        "trainer out of file descriptors at its start",
        processes.limited_at_start("trainer", resource.RLIMIT_NOFILE, processes.next_file),
        GONE,
    ),
    Fault(
        "trainer out of memory at its start",
        processes.limited_at_start("trainer", resource.RLIMIT_AS, processes.little_memory),
        GONE,
    ),
    Fault("trainer killed at its start", processes.killed_at_start("trainer"), GONE),
    Fault(
        "trainer killed in a checkpoint",
        processes.killed_in_a_checkpoint,
        GONE,
        changes={"checkpoint.every": 20},
    ),
    Fault(
        "trainer killed in an evaluation",
        processes.killed_in_an_evaluation,
        GONE,
        changes=SWITCHED | {"eval.every": 5.0},
    ),
    Fault("trainer killed at the end", processes.killed_at_the_end("trainer"), GONE),
    Fault("supervisor killed, run resumed", processes.ended_and_resumed(signal.SIGKILL)),
    Fault("Ctrl-C, run resumed", processes.ended_and_resumed(signal.SIGINT), "stopping", is_quick=True),
    Fault(
        "newest checkpoint flipped, trainer killed", surroundings.flipped_checkpoint, DAMAGED, is_quick=True
    ),
    Fault("weights flipped on their way", surroundings.flipped_slots),
    Fault(
        "disk full",
        surroundings.full,
        "no room left|No space",
        needs_root=True,
        code=4,
        must_cover=False,
        begin=surroundings.on_a_small_disk,
    ),
    Fault("run directory gone", surroundings.vanished, "is gone|No such", code=4, must_cover=False),
    Fault(
        "trainer may write no file",
        processes.limited("trainer", resource.RLIMIT_FSIZE, lambda pid: 0),
        GONE,
    ),
    Fault("tiny /dev/shm", surroundings.nothing, "", around=_TINY_MEMORY, needs_root=True),
    Fault("clock jumps by hours", surroundings.clock_jumps, begin=surroundings.with_a_jumping_clock),
    Fault("NaN in the data", processes.switched(NAN), "diverged", code=2, changes=SWITCHED, must_cover=False),
    Fault(
        "weights blow up",
        surroundings.nothing,
        "diverged",
        code=2,
        changes={"optim.lr": 1e12},
        must_cover=False,
    ),
    Fault("link cut for a while", links.cut(up=True, down=True), "silent|lost", begin=links.through_a_proxy),
    Fault("link cut one way", links.cut(up=True, down=False), "silent|lost", begin=links.through_a_proxy),
    Fault("link 100 ms late", links.late(0.1), begin=links.through_a_proxy),
    Fault("link stalls for a second now and then", links.stalling, begin=links.through_a_proxy),
    Fault("link resets every second", links.resetting, begin=links.through_a_proxy),
    Fault("link flips bits", links.flipping, begin=links.through_a_proxy),
]
