"""The state of a run in one word and a few numbers: for list, metrics and health check. Pure."""

from typing import Any

from sbpipe.show.live.state import RunState

OLD_S = 3600.0
STATES = ("waiting", "running", "stalled", "finished", "stopped", "failed")


def status(state: RunState, now: float, stalled_after_s: float) -> str:
    """One of `STATES`; `stalled` is a run that has not ended and has been silent for too long."""
    if state.ending is not None:
        return state.ending
    if state.last_t is None:
        return "waiting"
    if now - state.last_t > stalled_after_s:
        return "stalled"
    return "running" if state.latest.get("step") else "waiting"


def head(name: str, state: RunState, now: float, stalled_after_s: float, notes: list[str]) -> dict[str, Any]:
    """A run's line in the list."""
    word = status(state, now, stalled_after_s)
    latest = dict(state.latest)
    if state.selectors:
        latest["selectors"] = sum(selector["state"] == "ready" for selector in state.selectors.values())
    if word in ("finished", "stopped", "failed", "stalled"):
        latest["left_s"] = None
    age_s = None if state.last_t is None else max(0, round(now - state.last_t))
    return {
        "name": name,
        "state": word,
        "age_s": age_s if word in ("running", "stalled", "waiting") else None,
        "last_t": state.last_t,
        "num_events": state.num_events,
        **state.start,
        **latest,
        "notes": notes,
    }


def complaints(heads: list[dict[str, Any]], problems: list[str], now: float) -> list[str]:
    """Why a health check should fail; [] if all is well, or the trouble is more than an hour old."""
    reasons = list(problems)
    for run in heads:
        # A folder of runs keeps its old failures; they must not raise the alarm permanently.
        if now - (run["last_t"] or now) > OLD_S:
            continue
        if run["state"] == "stalled":
            reasons.append(f"{run['name']}: stalled, no event for {run['age_s']} s")
        elif run["state"] == "failed":
            reasons.append(f"{run['name']}: failed")
    return reasons
