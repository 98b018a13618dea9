"""How the loop and the selectors spent their time, and what selectors report: shares and means, from spans
and rosters. Reads; never steers.
"""

from collections.abc import Callable

from sbpipe.runs.names import stages_of
from sbpipe.runs.spans import Spans
from sbpipe.trainer.serving.peers import Roster

BUSY = stages_of("trainer", "work")
OWN = tuple(name for name in stages_of("trainer", "overhead") if name != "between")
"""Stages of the loop that plain training lacks. What a user's own loop does between steps is not ours."""
APART = stages_of("trainer", "apart")
"""Stages that are not training, such as evaluation; ratios are of the rest of the loop's time."""


_LARGE = 0.1
"""An error of the busy time, relative to it, that the user is told."""


class Usage:
    """Shares of the loop's time since it began, in this process.

    `window`: when the loop began, and now. `messages_are_beside`: the thread that talks to selectors takes
    none of the loop's time.
    """

    def __init__(
        self,
        spans: Spans,
        roster: Roster,
        window: Callable[[], tuple[float, float]],
        messages_are_beside: bool,
    ) -> None:
        self._spans, self._roster, self._window = spans, roster, window
        self._own = OWN if messages_are_beside else (*OWN, "dispatch")

    @property
    def loop_s(self) -> float:
        """Seconds of the loop, without the stages apart from training."""
        began, now = self._window()
        return max(1e-9, now - began - sum(self._spans.total_s[name] for name in APART))

    def ratio(self, *names: str) -> float:
        """The share of the loop's time that these stages took."""
        return min(1.0, sum(self._spans.total_s[name] for name in names) / self.loop_s)

    def selector_busy(self) -> float:
        """The share of that time in which a selector worked, a mean over the selectors while ready."""
        began, now = self._window()
        selectors = self._roster.ready_s(began, now) / max(1e-9, now - began)
        busy_s = self._roster.total(lambda stats: stats.busy_s)
        return min(1.0, busy_s / max(1e-9, self.loop_s * selectors))

    def of_trainer(self) -> dict[str, float | None]:
        """For the summary: the loop's stages."""
        spans, loop_s = self._spans, self.loop_s
        return {
            "trainer.busy_ratio": min(1.0, spans.worked_s(BUSY) / loop_s),
            "trainer.busy_error": min(1.0, spans.worked_error_s() / loop_s),
            "trainer.gap_ratio": min(1.0, spans.gap_s() / loop_s),
            "trainer.launch_ratio": min(1.0, sum(spans.drained_s[name] for name in BUSY) / loop_s),
            "trainer.idle_ratio": self.ratio("wait"),
            "trainer.wait_view_ratio": self.ratio("wait_view"),
            "trainer.selection_ratio": self.ratio(*self._own),
            "trainer.step_ms": sum(spans.mean_ms(name) or 0.0 for name in BUSY),
            "trainer.steer_ms": (spans.mean_ms("weigh") or 0.0) + (spans.mean_ms("steer") or 0.0),
            "trainer.view_ms": spans.mean_ms("view"),
            "trainer.dispatch_ms": 1e3 * spans.total_s["dispatch"] / max(1, spans.count["forward"]),
            "trainer.after_ms": 1e3 * spans.total_s["after"] / max(1, spans.count["forward"]),
            "trainer.log_ms": spans.mean_ms("log"),
        }

    @property
    def doubt(self) -> str:
        """A caveat where it is uncertain how busy an accelerator was; "" = none."""
        worked_s, error_s = self._spans.worked_s(BUSY), self._spans.worked_error_s()
        if error_s <= _LARGE * worked_s:
            return ""
        return (
            f"the device was busy for {worked_s / self.loop_s:.0%} of the time, but that may be off by "
            f"{min(1.0, error_s / self.loop_s):.0%}: its host launches slower than it computes, and gaps "
            "were measured in too few steps, or in none"
        )

    def of_selectors(self) -> dict[str, float | str | None]:
        """For the summary: how busy selectors were, how they scored and how weights reached them."""
        roster, busy = self._roster, self.selector_busy()
        return {
            "selector.busy_ratio": busy,
            "selector.idle_ratio": 1.0 - busy,
            "scoring.precision": roster.precisions(),
            "scoring.agreement": roster.mean(lambda stats: stats.agreement),
            "scoring.scale_agreement": roster.mean(lambda stats: stats.scale_agreement),
            "scoring.failed_checks": int(roster.total(lambda stats: stats.failed_checks)),
            "scoring.checks": int(roster.total(lambda stats: stats.checks)),
            "scoring.overflowed": int(roster.total(lambda stats: stats.overflowed)),
            "scoring.estimated": int(roster.total(lambda stats: stats.estimated)),
            "scoring.evaluation_loss": roster.mean(lambda stats: stats.evaluation_loss),
            "scoring.batch_loss": roster.mean(lambda stats: stats.batch_loss),
            "scoring.statistics_agreement": roster.mean(lambda stats: stats.statistics_agreement),
            "scoring.refresh_ms": roster.mean(lambda stats: stats.refresh_ms),
            "sync.apply_ms": roster.mean(lambda stats: stats.apply_ms),
            "sync.transfer_ms": roster.mean(lambda stats: stats.transfer_ms) or 0.0,
        }
