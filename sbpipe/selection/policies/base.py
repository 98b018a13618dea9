"""The common part of policies that rank a score among recent ones: keeping the history. Knows no rule."""

from sbpipe.records import Classes, Floats
from sbpipe.selection.class_history import ClassHistory
from sbpipe.selection.history import History


class HistoryPolicy:
    """Holds the last scores; a subclass has the rule."""

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
