"""Decide with fresh losses: the weights that turn a proposal made from old scores into the choice fresh ones would have made.

A candidate was kept with probability q, by a score of `staleness` steps ago. The forward pass of its train step gives its loss as it is
now, and with it the probability p that fresh selection would have kept it with. Weighted by p / q, the batch's gradient is in
expectation the one of fresh selection, whatever the delay: sum of q * (p / q) * gradient = sum of p * gradient. Weights are divided by
their running mean, which would be 1 if the estimate of p were exact, so that it does not change the learning rate. They are not
normalised within a batch: one whose examples were all corrected meanwhile shall push less, and this is what stops the swinging. All on
the trainer's device, without waiting for it.
"""

import torch

SLOWNESS = 0.95
"""Share of the running mean that stays at each step: about the last twenty batches count."""


class FreshWeights:
    """Remembers recent fresh losses, each standing for 1 / q candidates: together they estimate the cdf of all candidates now."""

    def __init__(self, *, keep: float, window: int) -> None:
        self._keep = keep
        self._beta = 1.0 / keep - 1.0
        self._most = 1.0 / keep
        """The greatest weight: that of an example kept blindly which fresh selection would keep for sure."""
        self._window = window
        self._losses: torch.Tensor | None = None
        self._stands_for: torch.Tensor | None = None
        self._classes: torch.Tensor | None = None
        self._mean = torch.tensor(1.0)

    @torch.no_grad()
    def __call__(
        self, losses: torch.Tensor, keep_probability: torch.Tensor, strength: float, classes: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The weight of each example of a train batch; 1 for those that were kept without a choice.

        With `classes` a loss is ranked among those of its class, as its score was.
        """
        ratios = self.ratios(losses, keep_probability, strength, classes)
        self._mean = SLOWNESS * self._mean.to(losses.device) + (1.0 - SLOWNESS) * ratios.mean()
        return torch.where(keep_probability < 1.0, ratios / self._mean, 1.0)

    @torch.no_grad()
    def ratios(
        self, losses: torch.Tensor, keep_probability: torch.Tensor, strength: float, classes: torch.Tensor | None = None
    ) -> torch.Tensor:
        """What the fresh loss of each example deserves over what its old score got, bounded; the losses are remembered."""
        losses = losses.float()
        self._losses = self._newest(self._losses, losses)
        self._stands_for = self._newest(self._stands_for, 1.0 / keep_probability)
        if classes is None:
            shares = _share_below(losses, self._losses, self._stands_for)
        else:
            self._classes = self._newest(self._classes, classes)
            shares = _share_below_in_class(losses, classes, self._losses, self._stands_for, self._classes)
        target = strength * shares**self._beta + (1.0 - strength) * self._keep
        return torch.where(keep_probability < 1.0, (target / keep_probability).clamp(max=self._most), 1.0)

    def _newest(self, remembered: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
        return new if remembered is None else torch.cat([remembered.to(new.device), new])[-self._window :]

    def state(self) -> dict[str, torch.Tensor | None]:
        """For the checkpoint."""
        remembered = {"losses": self._losses, "stands_for": self._stands_for, "classes": self._classes, "mean": self._mean}
        return {name: _on_cpu(tensor) for name, tensor in remembered.items()}

    def restore(self, state: dict[str, torch.Tensor | None]) -> None:
        """Go on from a checkpoint."""
        self._losses, self._stands_for, self._classes = state["losses"], state["stands_for"], state["classes"]
        assert state["mean"] is not None
        self._mean = state["mean"]


def _share_below(losses: torch.Tensor, known: torch.Tensor, stands_for: torch.Tensor) -> torch.Tensor:
    """The share of the candidates that the known losses stand for strictly below each loss."""
    ordered, order = torch.sort(known)
    mass = torch.cumsum(stands_for[order], 0)
    below = torch.cat([mass.new_zeros(1), mass]) / mass[-1]
    return below[torch.searchsorted(ordered, losses)]


def _share_below_in_class(
    losses: torch.Tensor, classes: torch.Tensor, known: torch.Tensor, stands_for: torch.Tensor, known_classes: torch.Tensor
) -> torch.Tensor:
    """The same among the candidates of the loss's own class; each loss is known itself, so none stands alone."""
    mass = stands_for * (known_classes == classes[:, None])
    return (mass * (known < losses[:, None])).sum(dim=1) / mass.sum(dim=1)


def effective_share(weights: torch.Tensor) -> torch.Tensor:
    """Effective sample size of weights as a share of their number, (sum w)^2 / (n sum w^2): 1 = all count alike."""
    return weights.sum() ** 2 / (len(weights) * (weights**2).sum()).clamp(min=1e-30)


def _on_cpu(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().cpu().clone()
