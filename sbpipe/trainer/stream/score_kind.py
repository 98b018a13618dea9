"""Whether the scores of a run are plain cross entropy of classes, and what follows from that.

Known by the name of the loss; for a plug-in, by its gradient and values when a step was rehearsed; for a
user's own loop, whose outputs the trainer does not see, by its selectors: they report places of labels only
where the gradient of the losses is softmax minus one-hot. Pure.
"""

from sbpipe.config import OWN, Config
from sbpipe.records import Floats, Selection
from sbpipe.selection.worth import Effective, effective_share, residual_norms

_ENTROPY = "cross_entropy"


class ScoreKind:
    """What the scores of candidates are."""

    def __init__(self, config: Config, *, is_entropy: bool = False) -> None:
        """`is_entropy`: the losses were found to be plain cross entropy of classes."""
        loss = config.loss
        self._name, self._by = (_ENTROPY if is_entropy else loss.name), config.selection.score
        # The setting has no effect on a plug-in that was found to be plain cross entropy.
        self._smoothing = loss.label_smoothing if loss.name == _ENTROPY else 0.0
        self._is_own = loss.name == OWN

    def note(self, selection: Selection) -> None:
        """A selector has answered."""
        if self._is_own and selection.places is not None:
            self._name = _ENTROPY

    @property
    def are_entropy(self) -> bool:
        """Whether log C is the score of a guess among C classes."""
        return self._name == _ENTROPY and self._by == "loss"

    def effective(self, scores: Floats) -> Effective | None:
        """The effective share of the candidates with these scores; None = not known from these scores."""
        norms = residual_norms(scores, loss=self._name, by=self._by, label_smoothing=self._smoothing)
        return effective_share(norms)

    def state(self) -> str:
        """For the checkpoint."""
        return self._name

    def restore(self, state: str) -> None:
        """Go on from a checkpoint."""
        if self._is_own:
            self._name = state
