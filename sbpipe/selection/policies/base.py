"""What policies that judge a score by recent ones have in common: how the history is kept. Knows no rule."""

from sbpipe.records import Classes, Floats
from sbpipe.selection.class_history import ClassHistory
from sbpipe.selection.history import History


class HistoryPolicy:
    """Holds the last scores; a subclass says what follows from them."""

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
