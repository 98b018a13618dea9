"""What policies that judge a score by recent ones have in common: a history, and how it is kept and handed
over. Knows no rule.
"""

from sbpipe.records import Classes, Floats
from sbpipe.selection.by_class import ClassHistory
from sbpipe.selection.history import History


class Remembering:
    """Holds the last scores; who derives from it says what follows from them."""

    _history: History | ClassHistory

    def consider(self, scores: Floats, classes: Classes | None = None) -> None:
        """Add the scores to the history."""
        self._history.push(scores, classes)

    def state(self) -> Floats:
        """The history, oldest first."""
        return self._history.state()

    def restore(self, state: Floats, classes: Classes | None = None) -> None:
        """Take over a history."""
        self._history.restore(state, classes)
