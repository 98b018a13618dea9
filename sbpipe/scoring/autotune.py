"""`auto`: the precision and batch size that score fastest here, measured between the first leases.

A run begins in fp32. Measurements run beside its first steps: on candidates of real leases, with real
weights, in pieces of about a tenth of a second, since a lease may have to wait for one. An accelerator is
timed by its own events, and the results are read after a later lease, which has waited for the device anyway.
A piece waits for the device itself only to find out whether a precision works at all. The choice is a pure
function of the measurements (`ladder_of`, `knee`). It must not know leases, policies or sockets.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from sbpipe.errors import SbpipeError
from sbpipe.machine.devices import is_out_of_memory
from sbpipe.machine.event_clock import refusal_to_time
from sbpipe.records import Floats
from sbpipe.scoring.agreement import agreement_of
from sbpipe.scoring.any_scorer import AnyScorer
from sbpipe.scoring.laps import Laps
from sbpipe.scoring.precision import supported
from sbpipe.scoring.queued import Coming

log = logging.getLogger("sbpipe.scoring")

BATCH_SIZES = (16, 32, 64, 128, 256, 512)
# A lease ends with the pass that kept enough, so short passes mean less staleness: worth a little speed.
_NEAR_THE_BEST = 0.95
_TASTE, _RANKED = 8, 64
"""Candidates of the first try, and candidates whose ranks are compared."""
_RESTS = (64, 256, 1024)
"""Leases before ranks that did not agree are compared again: with the first weights they mean little."""
_LEAST_PASSES, _MOST_PASSES, _ENOUGH_S = 3, 30, 0.1
_LONGEST_PASS_S = 0.05
"""Longest pass in fp32 while precisions are compared; a piece has several."""
_LONGEST_SIZE_S = 0.15
"""Longest pass while batch sizes are compared: in a longer one the overhead is negligible."""

Candidates: TypeAlias = Any
"""What a scorer takes: a tensor, or a user's own batch; both have a length."""
Score = Callable[[Candidates, Any], Floats]
Pieces = Iterator[None]
Rates: TypeAlias = Generator[None, None, list[float]]
"""A generator that yields between pieces and returns the measured rates."""


# --- what is chosen -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """How fast a precision scores, and how well its scores rank like those in fp32."""

    precision: str
    examples_per_s: float
    agreement: float

    def __str__(self) -> str:
        return f"{self.precision} {self.examples_per_s:,.0f}/s (ranks like fp32 to {self.agreement:.3f})"


def ladder_of(rows: Sequence[Measured], least: float) -> list[str]:
    """The usable precisions, slowest first: fp32 (the first row), then those faster than it with
    equal ranks.
    """
    base, *narrow = rows
    good = [row for row in narrow if row.examples_per_s > base.examples_per_s and row.agreement >= least]
    return [base.precision, *(row.precision for row in sorted(good, key=lambda row: row.examples_per_s))]


def worth_another_look(rows: Sequence[Measured], least: float) -> list[str]:
    """The precisions to compare once more: faster than the chosen one, rejected only by their ranks."""
    rate_of = {row.precision: row.examples_per_s for row in rows}
    chosen = rate_of[ladder_of(rows, least)[-1]]
    return [row.precision for row in rows if row.examples_per_s > chosen]


def knee(rates: Iterable[tuple[int, float]]) -> int:
    """The smallest size whose rate is near the best; sizes are in ascending order."""
    known = list(rates)
    best = max(rate for _, rate in known)
    return next(size for size, rate in known if rate >= _NEAR_THE_BEST * best)


# --- how it is measured ---------------------------------------------------------------------------


def _fastest_s(scores: Sequence[Score], inputs: Candidates, targets: Any) -> list[float]:
    """The fastest pass of each, measured in turn, so that other load on the machine slows all of
    them alike.
    """
    fastest, give_up = [float("inf")] * len(scores), time.perf_counter() + _ENOUGH_S
    for _ in range(_MOST_PASSES):
        for k, score in enumerate(scores):
            begin = time.perf_counter()
            score(inputs, targets)
            # The minimum and not the mean: other load only ever makes a pass slower.
            fastest[k] = min(fastest[k], time.perf_counter() - begin)
        if time.perf_counter() > give_up:
            break
    return fastest


def _arrived(coming: Sequence[Coming]) -> Generator[None, None, list[Floats]]:
    """The scores, once all of them are here."""
    while not all(each.are_here for each in coming):
        yield
    return [each.scores() for each in coming]


def _take_weights(*scorers: AnyScorer) -> None:
    """Refresh all scorers: trials are not told of new weights, and ranks compare only under the
    same weights.
    """
    for scorer in scorers:
        scorer.refresh(anyway=True)


class Tuning:
    """Measures piece by piece what is left to "auto", and applies the choice to the scorer."""

    def __init__(
        self, scorer: AnyScorer, batch_size: int, *, has_precision: bool, has_batch_size: bool, least: float
    ) -> None:
        """`least` is the rank correlation with fp32 that a precision must reach."""
        self._scorer, self._least = scorer, least
        self.batch_size = batch_size
        """Candidates per pass, as chosen so far."""
        self._most = BATCH_SIZES[-1] if has_batch_size else max(batch_size, _TASTE)
        self._chunks: deque[tuple[Candidates, Any]] = deque()
        self._rows: list[Measured] = []
        self._size, self._taste = 0, 0.0
        self._rest = 0
        self._is_timed_there = scorer.device.type != "cpu" and not refusal_to_time(scorer.device)
        self._pieces = self._all_pieces(has_precision, has_batch_size)
        self.is_over = False

    def offer(self, inputs: Candidates, targets: Any) -> None:
        """Add candidates of a lease; the newest are used for measuring."""
        self._chunks.append((inputs, targets))
        while self._on_hand - len(self._chunks[0][0]) >= self._most:
            self._chunks.popleft()

    def piece(self) -> None:
        """Measure one more piece; does nothing before there are candidates."""
        if self._chunks and next(self._pieces, self) is self:
            self.is_over = True
            self._chunks.clear()

    def is_due(self) -> bool:
        """Whether there is a piece to measure now; called once after every lease."""
        self._rest -= self._rest > 0
        return not self.is_over and not self._rest

    @property
    def _on_hand(self) -> int:
        return sum(len(inputs) for inputs, _ in self._chunks)

    def _some(self, count: int) -> tuple[Candidates, Any]:
        """The newest candidates, at most `count` if they can be cut."""
        return self._scorer.newest(self._chunks, count)

    def _all_pieces(self, has_precision: bool, has_batch_size: bool) -> Pieces:
        if has_precision:
            yield from self._choose_precision()
        if has_batch_size:
            yield from self._choose_batch_size()
        for rest in _RESTS:
            again = worth_another_look(self._rows, self._least) if self._rows else []
            self._rest = rest if again else 0
            yield
            # A bad check may have made the scorer step back meanwhile: then its precision is final.
            if not again or self._scorer.precision != ladder_of(self._rows, self._least)[-1]:
                return
            self._rows = [row for row in self._rows if row.precision not in again]
            yield from self._compare(again)

    # --- precision --------------------------------------------------------------------------------

    def _choose_precision(self) -> Pieces:
        """Use the fastest precision that ranks like fp32."""
        (self._taste,) = yield from self._rates([self._scorer], *self._some(_TASTE))
        # A long pass is shortened: only the order of speeds matters.
        self._size = max(_TASTE, min(self.batch_size, int(_LONGEST_PASS_S * self._taste)))
        yield
        (exact_rate,) = yield from self._rates([self._scorer], *self._some(self._size), self._taste)
        self._rows = [Measured("fp32", exact_rate, 1.0)]
        yield from self._compare([name for name in supported(self._scorer.device) if name != "fp32"])

    def _compare(self, precisions: Sequence[str]) -> Pieces:
        """Measure some precisions beside fp32, and use the best; slower ones are kept for stepping back."""
        is_exact = self._scorer.precision == "fp32"
        exact, trials = self._scorer if is_exact else self._scorer.trial("fp32"), dict[str, AnyScorer]()
        for precision in precisions:
            yield
            trial = self._trial(precision)
            if trial is not None:
                trials[precision] = trial
                yield
                self._rows.append((yield from self._measure(trial, exact)))
        ladder = ladder_of(self._rows, self._least)
        self._scorer.slower = ladder[:-1]
        if ladder[-1] in trials:
            self._scorer.adopt(trials[ladder[-1]])
        measured = ", ".join(str(row) for row in self._rows)
        log.info("selector.precision = 'auto': scoring in %s; measured %s", ladder[-1], measured)

    def _trial(self, precision: str) -> AnyScorer | None:
        """A scorer at this precision; None where it does not work, which must not end the run."""
        try:
            trial = self._scorer.trial(precision)
            trial.prepare(*self._some(_TASTE))
        except SbpipeError as error:
            log.info("selector.precision = 'auto': not %s: %s", precision, error)
            return None
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            log.info("selector.precision = 'auto': not %s: out of memory", precision)
            return None
        # If it fell back to fp32, it has logged that.
        return trial if trial.precision == precision else None

    def _measure(self, trial: AnyScorer, exact: AnyScorer) -> Generator[None, None, Measured]:
        """Its speed and its ranks beside those of fp32, with the same weights."""
        _take_weights(trial, exact)
        inputs, targets = self._some(_TASTE)
        (taste,) = yield from self._rates([trial], inputs, targets)
        if taste < 0.5 * self._taste:
            # A precision that the device emulates can be ten times as slow: no more time is spent on it.
            _take_weights(trial, exact)
            pair = trial.begin(inputs, targets), exact.begin(inputs, targets)
            return Measured(trial.precision, taste, agreement_of(*(yield from _arrived(pair))))
        coarse, fine = list[Coming](), list[Coming]()
        while sum(map(len, fine)) < _RANKED:
            yield
            _take_weights(trial, exact)
            inputs, targets = self._some(self._size)
            fine.append(exact.begin(inputs, targets))
            coarse.append(trial.begin(inputs, targets))
        scores = yield from _arrived([*coarse, *fine])
        found = np.concatenate(scores[: len(coarse)]), np.concatenate(scores[len(coarse) :])
        agreement = agreement_of(*found)
        yield
        both = yield from self._rates([exact, trial], inputs, targets, taste, is_warm=True)
        return Measured(trial.precision, self._rows[0].examples_per_s * both[1] / both[0], agreement)

    def _rates(
        self,
        scorers: Sequence[AnyScorer],
        inputs: Candidates,
        targets: Any,
        guess: float = 0.0,
        *,
        is_warm: bool = False,
    ) -> Rates:
        """Examples per second of each; `guess`, a rate, sets the number of passes on an accelerator."""
        if self._is_timed_there:
            many = int(_ENOUGH_S * guess / len(inputs))
            passes = [partial(scorer.run, inputs, targets) for scorer in scorers]
            laps = Laps(self._scorer.device, passes, min(_MOST_PASSES, max(_LEAST_PASSES, many)))
            while not laps.are_over:
                yield
            return [len(inputs) / fastest_s for fastest_s in laps.fastest_s()]
        if not is_warm:
            for scorer in scorers:
                scorer.score(inputs, targets)
        fastest = _fastest_s([scorer.score for scorer in scorers], inputs, targets)
        return [len(inputs) / fastest_s for fastest_s in fastest]

    # --- batch size -------------------------------------------------------------------------------

    def _choose_batch_size(self) -> Pieces:
        """The smallest batch size that scores nearly as fast as the fastest."""
        rates: list[tuple[int, float]] = []
        for size in BATCH_SIZES:
            if rates and size / rates[-1][1] > _LONGEST_SIZE_S:
                break
            yield
            while self._on_hand < size:
                yield
            try:
                guess = rates[-1][1] if rates else 0.0
                (found,) = yield from self._rates([self._scorer], *self._some(size), guess)
                rates.append((size, found))
            except (RuntimeError, MemoryError) as error:
                if not rates or not is_out_of_memory(error):
                    raise
                break
        self.batch_size = knee(rates)
        log.info("selector.batch_size = 'auto': %d candidates per forward pass", self.batch_size)
