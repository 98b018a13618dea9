"""`auto`: the precision and batch size that score fastest here, measured on real candidates."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sbpipe.machine.devices import is_out_of_memory
from sbpipe.records import Floats
from sbpipe.scoring.agreement import agreement_of
from sbpipe.scoring.precision import supported
from sbpipe.scoring.scorer import Scorer

log = logging.getLogger("sbpipe.scoring")

BATCH_SIZES = (16, 32, 64, 128, 256, 512)
# A lease ends with the pass that kept enough, so a short pass means less lag: worth a little speed.
_NEAR_THE_BEST = 0.95
_TASTE = 8
_MOST_PASSES, _ENOUGH_S = 30, 0.3

Score = Callable[[Tensor, Tensor], Floats]


@dataclass(frozen=True)
class Measured:
    """How fast a precision scores, and how well its scores rank like those in fp32."""

    precision: str
    examples_per_s: float
    agreement: float

    def __str__(self) -> str:
        return f"{self.precision} {self.examples_per_s:,.0f}/s (ranks like fp32 to {self.agreement:.3f})"


def choose_precision(scorer: Scorer, inputs: Tensor, targets: Tensor, least: float) -> list[Measured]:
    """Use the fastest precision that ranks like fp32, slower ones kept to step back to; what was measured."""
    rows: list[Measured] = []
    exact, least_rate = None, 0.0
    for precision in supported(inputs.device):
        scorer.use(precision)
        scorer.prepare(inputs[:_TASTE], targets[:_TASTE])
        # It fell back, and has said so.
        if scorer.precision != precision:
            continue
        # A precision that the device only imitates can be ten times as slow: it is not given the whole batch.
        taste = rate(scorer.score, inputs[:_TASTE], targets[:_TASTE])
        some = _TASTE if taste < least_rate else len(inputs)
        scores = scorer.score(inputs[:some], targets[:some])
        if exact is None:
            exact, least_rate = scores, 0.5 * taste
        agreement = agreement_of(scores, exact[:some])
        rows.append(Measured(precision, rate(scorer.score, inputs[:some], targets[:some]), agreement))
    ladder = ladder_of(rows, least)
    scorer.slower = ladder[:-1]
    scorer.use(ladder[-1])
    log.info(
        "selector.precision = 'auto': scoring in %s; measured %s",
        ladder[-1],
        ", ".join(str(row) for row in rows),
    )
    return rows


def ladder_of(rows: Sequence[Measured], least: float) -> list[str]:
    """The precisions worth having, slowest (fp32, the first row) first: faster than it, and ranking alike."""
    base, *narrow = rows
    good = [row for row in narrow if row.examples_per_s > base.examples_per_s and row.agreement >= least]
    return [base.precision, *(row.precision for row in sorted(good, key=lambda row: row.examples_per_s))]


def choose_batch_size(score: Score, inputs: Tensor, targets: Tensor) -> int:
    """The smallest batch size that scores nearly as fast as the fastest."""
    sizes = [size for size in BATCH_SIZES if size <= len(inputs)] or [len(inputs)]
    chosen = knee(_rates(score, inputs, targets, sizes))
    log.info("selector.batch_size = 'auto': %d candidates per forward pass", chosen)
    return chosen


def _rates(
    score: Score, inputs: Tensor, targets: Tensor, sizes: Sequence[int]
) -> Iterator[tuple[int, float]]:
    """The rate at each size, up to the largest that there is memory for."""
    for size in sizes:
        try:
            yield size, rate(score, inputs[:size], targets[:size])
        except (RuntimeError, MemoryError) as error:
            if size == sizes[0] or not is_out_of_memory(error):
                raise
            return


def knee(rates: Iterable[tuple[int, float]]) -> int:
    """The smallest size whose rate is near the best; sizes come in rising order."""
    known = list(rates)
    best = max(rate for _, rate in known)
    return next(size for size, rate in known if rate >= _NEAR_THE_BEST * best)


def rate(score: Score, inputs: Tensor, targets: Tensor) -> float:
    """Examples per second, the best of some passes after one that warms up."""
    score(inputs, targets)
    fastest, give_up = torch.inf, time.perf_counter() + _ENOUGH_S
    for _ in range(_MOST_PASSES):
        begin = time.perf_counter()
        score(inputs, targets)
        end = time.perf_counter()
        # The best and not the mean: other work on the machine only ever makes a pass slower.
        fastest = min(fastest, end - begin)
        if end > give_up:
            break
    return len(inputs) / fastest
