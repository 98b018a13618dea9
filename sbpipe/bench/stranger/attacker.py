"""The process that tries, under another user id: by turns the run and the control, at a steady rate.

    python -m sbpipe.bench.stranger.attacker WINDOW_S WINDOWS RATE RUN CONTROL

Even windows are the run's, odd ones the control's. Prints when it began, on the monotonic clock, and what
came of both. It gives up root before it does anything.
"""

import encodings.idna  # noqa: F401  (loaded by the first connection; afterwards it could not be read)
import json
import os
import sys
import time
from dataclasses import asdict

from sbpipe.bench.stranger.attempts import Attempts
from sbpipe.bench.stranger.flood import Flood
from sbpipe.bench.stranger.target import Target, Tried

NOBODY = 65534
_TICK_S = 0.01


def become_nobody() -> None:
    """Become another user permanently."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    # As root the attempts would reach anything, even the bench's own processes and files.
    assert os.getresuid() == (NOBODY, NOBODY, NOBODY)


def work(target: Target, tried: Tried, until: float, rate: float) -> None:
    """Try repeatedly until a point in time, at a fixed rate."""
    began, cpu_before, done = time.monotonic(), time.process_time(), 0
    work = Flood(target, tried) if target.ports else Attempts(target, tried)
    while (now := time.monotonic()) < until:
        due = int(rate * (now - began))
        while done < due and time.monotonic() < until:
            work.once()
            done += 1
        time.sleep(_TICK_S)
    work.close()
    tried.cpu_s += time.process_time() - cpu_before


def main(arguments: list[str]) -> None:
    """Window after window."""
    window_s, count, rate = float(arguments[0]), int(arguments[1]), float(arguments[2])
    targets = [Target.from_json(text) for text in arguments[3:5]]
    tried = [Tried(), Tried()]
    become_nobody()
    began = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began + number * window_s - time.monotonic()))
        # Then a pause: connections left open by one window must not count for the next.
        until = began + (number + 1) * window_s - min(1.0, window_s / 8)
        work(targets[number % 2], tried[number % 2], until, rate)
    sys.stdout.write(json.dumps({"began": began, "tried": [asdict(one) for one in tried]}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
