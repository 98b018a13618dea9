"""What keeping freed memory (`cores.keep_memory`) saves a train step, by processes with and without it."""

import os
import statistics
import subprocess
import sys
import time

from sbpipe.bench.rows import Row
from sbpipe.machine import cores

_ROUNDS, _STEPS, _WARM_UP = 3, 30, 5
_DEADLINE_S = 300.0
_KEPT, _GIVEN_BACK = "kept", "given back"


def measure() -> list[Row]:
    """Milliseconds of processor time per step with either, and their ratio."""
    # By turns, so that a drift of the machine hits both alike.
    times = [(_child(_GIVEN_BACK), _child(_KEPT)) for _ in range(_ROUNDS)]
    without, with_ = (statistics.median(column) for column in zip(*times, strict=True))
    return [
        Row("memory", "step of the small residual net, freed memory given back", without, "ms"),
        Row("memory", "the same, freed memory kept", with_, "ms"),
        Row("memory", "kept against given back", with_ / without, "×"),
    ]


def _child(how: str) -> float:
    """What a process of its own measures: the setting holds for a whole process and cannot be taken back."""
    # What the user has told glibc would hold for both.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-m", "sbpipe.bench.memory", how]
    done = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=_DEADLINE_S
    )
    return float(done.stdout)


def _steps_ms(how: str) -> float:
    if how == _KEPT:
        cores.keep_memory()
    cores.pin(cores.share("trainer", 1))
    import torch

    from sbpipe.config import ModelConfig
    from sbpipe.machine.layout import laid_out, layout_of
    from sbpipe.models import build_model

    model = build_model(
        ModelConfig("small_resnet", {"depth": 8}), num_classes=10, input_shape=(3, 32, 32), seed=0
    )
    inputs, targets = laid_out(torch.rand(128, 3, 32, 32), layout_of(model)), torch.arange(128) % 10
    times = []
    for _ in range(_WARM_UP + _STEPS):
        # The kernel's work for this process counts, the time of others does not.
        begin = time.process_time()
        model.zero_grad()
        torch.autograd.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
        times.append(1e3 * (time.process_time() - begin))
    return statistics.median(times[_WARM_UP:])


if __name__ == "__main__":
    sys.stdout.write(f"{_steps_ms(sys.argv[1])}\n")
