"""Whether the scoring pass could serve as the forward pass of training, on one core: what a train batch costs
from its candidates to its gradient.

Section 4 of the paper proposes to keep the activations of the selection pass, so that what is selected needs
no second forward pass. That saves a forward pass of the kept and costs what scoring without gradients saves:
folded norms, integers, no activations to write out. Measured are parts, in turns, as seconds of the
processor, so that other work on the machine counts little; a way is the sum of its parts. The last two ways
are bounds, a recorded pass over all candidates and a backward pass of the kept alone: nothing that reuses the
pass can be faster.
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from sbpipe.bench.kept_rows import KeptRows, saved_bytes
from sbpipe.bench.rows import Row, one_core
from sbpipe.config import LossConfig, ModelConfig
from sbpipe.machine.layout import laid_out
from sbpipe.models import build_model
from sbpipe.models.losses import build_loss
from sbpipe.scoring import Scorer

MODELS: dict[str, dict[str, Any]] = {
    "small_cnn": {},
    "small_resnet": {"depth": 8},
    "resnet18_cifar": {"width": 16},
}
BATCH_SIZE, PER_KEPT, PASS = 128, 3, 64
"""Train batch, candidates for each that is kept, candidates of a scoring pass."""
ROUNDS, WARM = 9, 1
SHAPE, NUM_CLASSES = (3, 32, 32), 10

AS_IT_IS = "fp32 scoring, then training"
TRAINING = ("forward, kept", "backward, kept")
WAYS: dict[str, tuple[str, ...]] = {
    AS_IT_IS: ("score fp32", *TRAINING),
    "fp32 scoring in one pass, then training": ("score fp32, one pass", *TRAINING),
    "int8 scoring, then training": ("score int8", *TRAINING),
    "reuse, backward of all candidates": ("forward, all", "backward, all"),
    "reuse, backward of the kept rows": ("forward, all held", "backward, rows"),
    "reuse, bound": ("forward, all", "backward, kept"),
    "reuse, bound with fixed norms": ("forward, all, fixed norms", "backward, kept, fixed norms"),
}
"""The parts that each way is made of."""

Timed = Callable[[str, Callable[[], Any]], Any]
"""Calls a part by its name and gives what it gave."""


class Subject:
    """A model, its candidates, those of them that are kept, and the parts that are measured on them."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        generator = torch.Generator().manual_seed(0)
        self.inputs = laid_out(torch.randn(PER_KEPT * BATCH_SIZE, *SHAPE, generator=generator))
        self.targets = torch.randint(0, NUM_CLASSES, (len(self.inputs),), generator=generator)
        self.rows = torch.randperm(len(self.inputs), generator=generator)[:BATCH_SIZE].sort().values
        self.kept = laid_out(self.inputs[self.rows]), self.targets[self.rows]
        self._options = dict(options)
        self.model = self._build()
        self._loss = build_loss(LossConfig())

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Of a pass that is recorded."""
        return self._loss(self.model(inputs), targets)

    @cached_property
    def _reuse(self) -> KeptRows:
        return KeptRows(self.losses, *self.kept)

    @cached_property
    def _scorers(self) -> dict[str, Scorer]:
        cpu = torch.device("cpu")
        scorers = {
            name: Scorer(self._build(), self._loss, precision=name, device=cpu) for name in ("fp32", "int8")
        }
        for scorer in scorers.values():
            scorer.prepare(self.inputs[:PASS], self.targets[:PASS])
        return scorers

    def _build(self) -> nn.Module:
        return build_model(
            ModelConfig(self.name, self._options), num_classes=NUM_CLASSES, input_shape=SHAPE, seed=0
        )

    def round(self, timed: Timed) -> None:
        """Every part once."""
        everyone = self.inputs, self.targets
        timed("score fp32", partial(self._score, "fp32", PASS))
        timed("score fp32, one pass", partial(self._score, "fp32", len(self.inputs)))
        timed("score int8", partial(self._score, "int8", PASS))
        for norms in ("", ", fixed norms"):
            self.model.train(not norms)
            mean = timed(f"forward, kept{norms}", lambda: self.losses(*self.kept).mean())
            self._timed_backward(timed, f"backward, kept{norms}", mean)
            losses = timed(f"forward, all{norms}", partial(self.losses, *everyone))
            if not norms:
                self._timed_backward(timed, "backward, all", losses[self.rows].mean())
        del losses
        self.model.train()
        timed("forward, all held", partial(self._reuse.forward, *everyone))
        self.model.zero_grad()
        timed("backward, rows", partial(self._reuse.backward, self.rows))

    def _timed_backward(self, timed: Timed, part: str, mean: Tensor) -> None:
        self.model.zero_grad()
        timed(part, partial(torch.autograd.backward, mean))

    def _score(self, precision: str, size: int) -> None:
        for inputs, targets in zip(
            torch.split(self.inputs, size), torch.split(self.targets, size), strict=True
        ):
            self._scorers[precision].score(inputs, targets)


def measure() -> list[Row]:
    """Milliseconds per train batch by each way, the ratio to as it is, and what the activations take."""
    return [row for name, options in MODELS.items() for row in _measure(name, options)]


def rows_of(model: str, rounds_ms: Sequence[Mapping[str, float]]) -> list[Row]:
    """The ways, from the parts of every round: medians of the rounds, of their ratios too."""
    took = {
        way: [sum(parts_ms[part] for part in parts) for parts_ms in rounds_ms] for way, parts in WAYS.items()
    }
    rows = []
    for way, ways_ms in took.items():
        rows.append(Row("forward", f"{model}: {way}", statistics.median(ways_ms), "ms"))
        if way != AS_IT_IS:
            ratios = [
                way_ms / as_it_is_ms for way_ms, as_it_is_ms in zip(ways_ms, took[AS_IT_IS], strict=True)
            ]
            rows.append(Row("forward", f"{model}: {way}, to as it is", statistics.median(ratios), "x"))
    return rows


def _measure(name: str, options: Mapping[str, Any]) -> list[Row]:
    rounds_ms: list[dict[str, float]] = []

    def timed(part: str, call: Callable[[], Any]) -> Any:
        begin = time.process_time()
        found = call()
        rounds_ms[-1][part] = 1e3 * (time.process_time() - begin)
        return found

    with one_core():
        subject = Subject(name, options)
        for turn in range(WARM + ROUNDS):
            sys.stderr.write(f"  {name}: round {turn + 1} of {WARM + ROUNDS}\n")
            rounds_ms.append({})
            subject.round(timed)
    label = " ".join([name, *(f"{option} {value}" for option, value in options.items())])
    batch, candidates = (
        saved_bytes(subject.losses, *of) for of in (subject.kept, (subject.inputs, subject.targets))
    )
    return [
        *rows_of(label, rounds_ms[WARM:]),
        Row("forward", f"{label}: activations kept for a train batch", batch / 2**20, "MiB"),
        Row("forward", f"{label}: activations kept for its candidates", candidates / 2**20, "MiB"),
    ]
