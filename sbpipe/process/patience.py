"""How long to wait for a role to end: as long as it shows signs of life. Pure; knows no clock."""

LEAST_S = 30.0
_GAPS = 3.0
"""A role may be silent for this many times its longest silence so far: a large model's step takes long."""


class Patience:
    """Watches the signs of life of one role from its start."""

    def __init__(self) -> None:
        self._count = 0
        self._heard_at: float | None = None
        self._longest_s = 0.0

    def see(self, count: int, now: float) -> None:
        """By now there were `count` signs of life."""
        if count != self._count or self._heard_at is None:
            # The silence before the first sign was start-up, and does not count.
            if self._count and self._heard_at is not None:
                self._longest_s = max(self._longest_s, now - self._heard_at)
            self._count, self._heard_at = count, now

    def begin(self, now: float) -> None:
        """It is asked to end now: silence is counted from here."""
        self._heard_at = now

    @property
    def allowed_s(self) -> float:
        """How long it may be silent."""
        return max(LEAST_S, _GAPS * self._longest_s)

    def is_over(self, now: float) -> bool:
        """Whether it has been silent for too long."""
        return self._heard_at is not None and now - self._heard_at > self.allowed_s
