"""Scoring at every precision and batch size, on one core: speed, ranks against fp32, refresh time.

The speed that all are compared with is our own fp32. Two other ways to compute in fp32 stand beside it: the
model as it is (channels-last), and the same compiled. A precision that the device imitates, so that it takes
more than twice as long as fp32, is measured at the smallest batch only.
"""

import ctypes
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sbpipe.bench.rows import Row, one_core
from sbpipe.bench.scored import REFERENCE, Scored, bars
from sbpipe.bench.subject import CPU, TRAININGS, Subject, from_run, trained
from sbpipe.config import resolve
from sbpipe.machine.layout import laid_out, layout_of
from sbpipe.models import parts_of
from sbpipe.models.losses import build_loss
from sbpipe.records import Floats, Part
from sbpipe.scoring import Scorer
from sbpipe.scoring.precision import supported
from sbpipe.selection.fidelity import spearman
from sbpipe.weights.manifest import build_manifest, copy, tensors_in, tensors_of
from sbpipe.weights.replica import Replica

BATCH_SIZES = (32, 64, 128, 256)
ROUNDS, ENOUGH_S = 40, 2.0
"""Passes of each way, and the seconds after which there is no further one."""
TASTE = 16


@dataclass(frozen=True)
class Way:
    """One way to score: how, how its weights are refreshed, and its name in the table."""

    name: str
    score: Callable[[Tensor, Tensor], Floats]
    arrive: Callable[[bool], None]


def measure() -> list[Row]:
    """What is promised of scoring, of the two models of the default table."""
    return bars(measure_precisions())


def measure_precisions(
    given: Mapping[str, Any] | None = None, run: Path | None = None, *, compiled: bool = True
) -> list[Scored]:
    """The table: of the weights of a run, of the model and data given, or of the two default models."""
    if run is not None:
        subjects = [from_run(run)]
    elif given:
        subjects = [trained(resolve(given))]
    else:
        subjects = [trained(resolve({"model.name": name})) for name in TRAININGS]
    return [row for subject in subjects for row in _measure(subject, compiled=compiled)]


def _measure(subject: Subject, *, compiled: bool) -> list[Scored]:
    with one_core(), torch.inference_mode():
        exact = _plain(subject).score(subject.inputs, subject.targets)
        rows: list[Scored] = []
        for size in (size for size in BATCH_SIZES if size <= len(subject.inputs)):
            slow = {row.precision for row in rows if row.ratio_to_fp32 < 0.5}
            names = [name for name in supported(CPU) if name not in slow]
            names += ["fp32 as it is"] + (["fp32 compiled"] if compiled and size == REFERENCE else [])
            rows += _side_by_side(subject, names, size, exact, {row.precision: row for row in rows})
    return rows


def _side_by_side(
    subject: Subject, names: Sequence[str], size: int, exact: Floats, known: Mapping[str, Scored]
) -> list[Scored]:
    """Every way in turn, several rounds; ranks and refreshes are measured where they are not `known`."""
    ways, memory = {}, {}
    for name in names:
        sys.stderr.write(f"  {subject.name}, batch {size}: {name}\n")
        with _peak_mb() as peak:
            way = _way(subject, name)
            way.score(subject.inputs[:size], subject.targets[:size])
        if way.name == name:  # else the model cannot be scored so, which was said
            ways[name], memory[name] = way, peak[0]
    names = list(ways)
    fastest, spent = dict.fromkeys(names, math.inf), dict.fromkeys(names, 0.0)
    for _ in range(ROUNDS):
        for name in (name for name in names if spent[name] < ENOUGH_S):
            begin = time.perf_counter()
            ways[name].score(subject.inputs[:size], subject.targets[:size])
            took = time.perf_counter() - begin
            # The fastest pass: on a shared machine all others measure the neighbours too.
            fastest[name], spent[name] = min(fastest[name], took), spent[name] + took
    rows = []
    for name in names:
        rate, base = size / fastest[name], size / fastest["fp32"]
        slow = fastest[name] > 2.0 * fastest["fp32"]
        rest = (
            _constants(known[name])
            if name in known
            else _ranks_and_refreshes(subject, ways[name], exact, size, slow=slow)
        )
        rows.append(Scored(subject.name, name, size, rate, rate / base, *rest, memory[name]))
    return rows


def _constants(row: Scored) -> tuple[float, float, float]:
    return row.spearman, row.refresh_ms, row.fast_refresh_ms


def _ranks_and_refreshes(
    subject: Subject, way: Way, exact: Floats, size: int, *, slow: bool
) -> tuple[float, float, float]:
    few = slice(0, size if slow else len(exact))
    scores = np.concatenate(
        [way.score(*part) for part in _parts(subject.inputs[few], subject.targets[few], size)]
    )
    whole_s, fast_s = (_seconds(partial(way.arrive, kind)) for kind in (True, False))
    return spearman(scores, exact[few]), 1e3 * whole_s, 1e3 * fast_s


def _parts(inputs: Tensor, targets: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(torch.split(inputs, size), torch.split(targets, size), strict=True)


def _way(subject: Subject, name: str) -> Way:
    if name == "fp32 as it is":
        return _plain(subject)
    precision, _, how = name.partition(" ")
    scorer = Scorer(
        subject.model,
        build_loss(subject.config.loss),
        precision=precision,
        device=CPU,
        compiled=how == "compiled",
    )
    scorer.prepare(subject.inputs[:TASTE], subject.targets[:TASTE])
    manifest = build_manifest(subject.model, parts_of(subject.model))
    flat = torch.empty(manifest.num_bytes, dtype=torch.uint8)
    copy(tensors_in(flat, manifest), tensors_of(subject.model, manifest))
    replica = Replica(subject.model, manifest, scorer.weights_arrived)

    def arrive(whole: bool) -> None:
        replica.load(flat, Part.WHOLE if whole else Part.FAST)
        scorer.refresh()

    return Way(name if scorer.precision == precision else scorer.precision, scorer.score, arrive)


def _plain(subject: Subject) -> Way:
    """The model as it is, its weights channels-last like its inputs."""
    model = _build_like(subject)
    loss = build_loss(subject.config.loss)

    def score(inputs: Tensor, targets: Tensor) -> Floats:
        losses: Floats = loss(model(laid_out(inputs, layout_of(model))), targets).numpy()
        return losses

    return Way(
        "fp32 as it is", score, lambda whole: model.load_state_dict(subject.model.state_dict()) and None
    )


def _build_like(subject: Subject) -> nn.Module:
    model: nn.Module = deepcopy(subject.model).to(memory_format=torch.channels_last)
    return model


def _seconds(call: Callable[[], None]) -> float:
    call()
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


@contextmanager
def _peak_mb() -> Iterator[list[float]]:
    """How far the process grew meanwhile, at its highest; Linux counts it."""
    _give_back()
    with suppress(OSError):
        # 5 sets the peak (VmHWM) back to what is held now.
        Path("/proc/self/clear_refs").write_text("5")
    before, found = _status_mb("VmRSS"), [math.nan]
    yield found
    found[0] = _status_mb("VmHWM") - before


def _give_back() -> None:
    # What malloc keeps of earlier ways would serve this one, and no growth would be seen.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status_mb(name: str) -> float:
    with suppress(OSError):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return float(next(line for line in lines if line.startswith(name)).split()[1]) / 1024
    return math.nan
