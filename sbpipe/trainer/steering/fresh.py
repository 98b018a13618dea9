"""Weights by fresh losses: they turn a selection made with old scores into the one fresh scores would make.

A candidate was kept with probability q, by a score that is `staleness` steps old. The forward pass of its
train step gives its present loss, and with it the probability p with which fresh selection would have kept
it. Weighted by p / q, the batch's gradient is in expectation that of fresh selection, whatever the delay: sum
of q * (p / q) * gradient = sum of p * gradient. Weights are divided by their running mean, which would be 1
if the estimate of p were exact, so that they do not change the learning rate. They are not normalised within
a batch: a batch whose examples were all corrected meanwhile must count less, and this stops the swinging.

All of it runs on the trainer's device without waiting for it. On the CPU it runs in numpy, to the same bits:
there every call of torch releases the interpreter lock and may have to wait for other threads to get it back.
"""

from typing import NamedTuple

import numpy as np
import torch

from sbpipe.machine.copies import uploads_to
from sbpipe.records import Classes, Floats, Rates

_UNITS, _MOST_UNITS = 2.0**23, 2.0**46
"""What one candidate counts as an integer, and the most, so that the sum of a window fits."""

SLOWNESS = 0.95
"""Share of the running mean that stays at each step: about the last twenty batches count."""


class FreshWeights:
    """Recent fresh losses, each standing for 1 / q candidates: they estimate the present cdf of all
    candidates.
    """

    def __init__(self, *, window: int) -> None:
        self._window = window
        self._losses: torch.Tensor | None = None
        self._stands_for: torch.Tensor | None = None
        self._classes: torch.Tensor | None = None
        self._mean = torch.tensor(1.0)

    def __call__(
        self,
        losses: torch.Tensor,
        keep_probability: torch.Tensor,
        strength: float,
        classes: torch.Tensor | None = None,
        *,
        keep: Rates,
    ) -> torch.Tensor:
        """The weight of each example of a train batch, from its detached losses; 1 for those kept with
        certainty.

        With `classes` a loss is ranked among those of its class, as its score was. `keep` is the keep rate
        that each example's lease aimed at: fresh selection would aim at the same.
        """
        ratios = self.ratios(losses, keep_probability, strength, classes, keep=keep)
        if not self._in_numpy(losses):
            self._mean = SLOWNESS * self._mean.to(losses.device) + (1.0 - SLOWNESS) * ratios.mean()
            return torch.where(keep_probability < 1.0, ratios / self._mean, 1.0)
        mean = SLOWNESS * self._mean.numpy() + (1.0 - SLOWNESS) * ratios.mean().numpy()
        self._mean = torch.from_numpy(np.asarray(mean))
        return torch.from_numpy(
            np.where(keep_probability.numpy() < 1.0, ratios.numpy() / mean, np.float32(1.0))
        )

    def ratios(
        self,
        losses: torch.Tensor,
        keep_probability: torch.Tensor,
        strength: float,
        classes: torch.Tensor | None = None,
        *,
        keep: Rates,
    ) -> torch.Tensor:
        """p / q of each example, bounded; the losses are remembered."""
        losses, in_numpy = losses.float(), self._in_numpy(losses)
        stands_for = torch.from_numpy(1.0 / keep_probability.numpy()) if in_numpy else 1.0 / keep_probability
        self._losses = self._newest(self._losses, losses)
        self._stands_for = self._newest(self._stands_for, stands_for)
        if classes is not None:
            self._classes = self._newest(self._classes, classes)
            shares = _share_below_in_class(losses, classes, self._losses, self._stands_for, self._classes)
        elif in_numpy:
            shares = torch.from_numpy(
                _share_below_in_numpy(losses.numpy(), self._losses.numpy(), self._stands_for.numpy())
            )
        else:
            shares = _share_below(losses, self._losses, self._stands_for)
        # Nearly always all examples aim at one rate. A number, not a column: the same bits as with a fixed
        # rate.
        aim: float | torch.Tensor = float(keep[0])
        if not (keep == keep[0]).all():
            (aim,) = uploads_to(losses.device).together([torch.from_numpy(keep).float()])
        return _bounded(shares ** (1.0 / aim - 1.0), keep_probability, strength, aim)

    def _newest(self, remembered: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
        if remembered is None:
            return new
        if self._in_numpy(new):
            return torch.from_numpy(np.concatenate([remembered.numpy(), new.numpy()])[-self._window :])
        return torch.cat([remembered.to(new.device), new])[-self._window :]

    @staticmethod
    def _in_numpy(tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu"

    def recent(
        self, keep_probability: Floats, strength: float, classes: Classes | None, *, keep: Rates
    ) -> "Recent | None":
        """What a rank needs to weigh its share of a batch alone; None before the first step."""
        if self._losses is None or self._stands_for is None:
            return None
        known = self._classes if classes is not None else None
        return Recent(
            np.stack([keep_probability, keep, _column(classes, len(keep))]).astype(np.float64),
            np.stack(
                [
                    self._losses.cpu().numpy(),
                    self._stands_for.cpu().numpy(),
                    _column(None if known is None else known.cpu().numpy(), len(self._losses)),
                ]
            ).astype(np.float64),
            strength,
            float(self._mean),
        )

    def state(self) -> dict[str, torch.Tensor | None]:
        """For the checkpoint."""
        remembered = {
            "losses": self._losses,
            "stands_for": self._stands_for,
            "classes": self._classes,
            "mean": self._mean,
        }
        return {name: _on_cpu(tensor) for name, tensor in remembered.items()}

    def restore(self, state: dict[str, torch.Tensor | None]) -> None:
        """Go on from a checkpoint."""
        self._losses, self._stands_for, self._classes = state["losses"], state["stands_for"], state["classes"]
        assert state["mean"] is not None
        self._mean = state["mean"]


class Recent(NamedTuple):
    """What weighs some examples of a batch without the losses of the others: by losses up to the
    step before.
    """

    batch: Rates
    """Keep probability, keep rate aimed at and class (-1 = not asked) of each example."""
    known: Rates
    """Of each remembered example: its loss, the number of candidates it stands for, its class."""
    strength: float
    mean: float

    @property
    def table(self) -> torch.Tensor:
        """As one row of numbers, for the other ranks."""
        head = [self.strength, self.mean, self.batch.shape[1]]
        return torch.from_numpy(np.concatenate([head, self.batch.ravel(), self.known.ravel()]))

    @classmethod
    def of(cls, table: torch.Tensor) -> "Recent":
        """The inverse of `table`."""
        numbers = table.numpy()
        strength, mean, count = numbers[:3]
        end = 3 + 3 * int(count)
        return cls(numbers[3:end].reshape(3, -1), numbers[end:].reshape(3, -1), float(strength), float(mean))

    def share(self, rank: int, world: int) -> "Recent":
        """The same for every `world`-th example."""
        return self._replace(batch=self.batch[:, rank::world])

    def weights(self, losses: torch.Tensor) -> torch.Tensor:
        """The weight of each example, from its detached loss."""
        device = losses.device
        chances, _, classes = (torch.from_numpy(row).float().to(device) for row in self.batch)
        known, stands_for, known_classes = (torch.from_numpy(row).float().to(device) for row in self.known)
        shares = _share_below(losses.float(), known, stands_for)
        if (self.batch[2] >= 0).all():
            among = _share_below_in_class(losses.float(), classes, known, stands_for, known_classes)
            # Of a class that was not trained recently nothing is known.
            shares = torch.where(among.isfinite(), among, shares)
        keep = self.batch[1]
        aim = float(keep[0]) if (keep == keep[0]).all() else torch.from_numpy(keep).float().to(device)
        ratios = _bounded(shares ** (1.0 / aim - 1.0), chances, self.strength, aim)
        return torch.where(chances < 1.0, ratios / self.mean, 1.0)


def _column(classes: Classes | None, count: int) -> Classes:
    return np.full(count, -1, np.int64) if classes is None else classes


def _bounded(
    sharp: torch.Tensor, keep_probability: torch.Tensor, strength: float, keep: float | torch.Tensor
) -> torch.Tensor:
    """p / q, at most 1 / keep: the weight of a fill (its q is `keep`) that fresh selection would certainly
    keep.
    """
    if keep_probability.device.type != "cpu":
        target = strength * sharp + (1.0 - strength) * keep
        bounded = torch.clamp(target / keep_probability, max=1.0 / keep)
        return torch.where(keep_probability < 1.0, bounded, 1.0)
    rate = keep if isinstance(keep, float) else keep.numpy()
    chances = keep_probability.numpy()
    bounded = np.minimum((strength * sharp.numpy() + (1.0 - strength) * rate) / chances, 1.0 / rate)
    return torch.from_numpy(np.where(chances < 1.0, bounded, np.float32(1.0)))


def _share_below(losses: torch.Tensor, known: torch.Tensor, stands_for: torch.Tensor) -> torch.Tensor:
    """The share of the candidates, as estimated by the known losses, that lie strictly below each loss.

    Each 1 / q is a multiple of 2^-23. Summed as integers they are exact in any order: an accelerator adds
    floats in a different order every time.
    """
    ordered, order = torch.sort(known)
    units = (stands_for[order] * _UNITS).clamp(max=_MOST_UNITS).long()
    mass = torch.cumsum(units, 0).float()
    below = torch.cat([mass.new_zeros(1), mass]) / mass[-1]
    return below[torch.searchsorted(ordered, losses)]


def _share_below_in_numpy(losses: Floats, known: Floats, stands_for: Floats) -> Floats:
    """The same, to the bit, by sorting the few losses asked for instead of the many known ones.

    Sums are taken in float64, as torch does on the CPU. Each 1 / q is a multiple of 2^-23, so they are exact
    in any order.
    """
    order = losses.argsort()
    first_above = losses[order].searchsorted(known, side="right")
    mass = np.bincount(first_above, weights=stands_for, minlength=len(losses) + 1).cumsum().astype(np.float32)
    shares: Floats = np.empty_like(losses)
    shares[order] = mass[:-1] / mass[-1]
    return shares


def _share_below_in_class(
    losses: torch.Tensor,
    classes: torch.Tensor,
    known: torch.Tensor,
    stands_for: torch.Tensor,
    known_classes: torch.Tensor,
) -> torch.Tensor:
    """The same among candidates of the loss's own class, which is never empty: each loss is itself known."""
    mass = stands_for * (known_classes == classes[:, None])
    return (mass * (known < losses[:, None])).sum(dim=1) / mass.sum(dim=1)


def effective_share(weights: Floats) -> float:
    """Effective sample size over n, (sum w)^2 / (n sum w^2): 1 = all count alike."""
    return float(weights.sum()) ** 2 / max(len(weights) * float(weights @ weights), 1e-30)


def _on_cpu(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().cpu().clone()
