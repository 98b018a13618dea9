"""The lines of `sbpipe top`: the followed runs as text, from the live page's data. Pure."""

import time
from collections.abc import Mapping
from typing import Any

from sbpipe.show.live.watcher import Sent, Watcher
from sbpipe.show.terminal import duration, percent, selector_line, trainer_line

ACTIVE = ("running", "stalled", "waiting")
NUM_WARNINGS = 3


def lines_now(watcher: Watcher) -> list[str]:
    """Every run as it is now: active ones first and whole, the others in one line each."""
    told = watcher.overview()
    heads = sorted(told["heads"], key=lambda head: head["state"] not in ACTIVE)
    num_active = sum(head["state"] in ACTIVE for head in heads)
    details = watcher.news([head["name"] for head in heads[:num_active]], Sent()).get("runs", {})
    return [
        f"{time.strftime('%H:%M:%S')}  {num_active} active, {len(heads) - num_active} ended",
        *map(study_line, told["studies"]),
        *told["problems"],
        *told["notes"],
        *(line for head in heads[:num_active] for line in block_of(head, details.get(head["name"], {}))),
        *map(line_of, heads[num_active:]),
    ]


def block_of(head: Mapping[str, Any], details: Mapping[str, Any]) -> list[str]:
    """A run that goes on, with its newest warnings."""
    silent = f", silent for {duration(head['age_s'])}" if head["state"] == "stalled" else ""
    words = [str(head[name]) for name in ("mode", "policy") if head.get(name) is not None]
    warnings = [warning["text"] for warning in details.get("warnings", ())][-NUM_WARNINGS:]
    return [
        f"● {head['name']}  {head['state']}{silent}  {'  '.join(words)}",
        f"  {trainer_line(head)}",
        f"  {selector_line(head)}",
        *(f"  ! {text}" for text in [*head.get("notes", ()), *warnings]),
    ]


def line_of(head: Mapping[str, Any]) -> str:
    """A run that has ended."""
    return (
        f"● {head['name']}  {head['state']}  step {head.get('step') or 0:.0f}"
        f"  error {percent(head.get('error'))}  ran {duration(head.get('elapsed_s'))}"
    )


def study_line(study: Mapping[str, Any]) -> str:
    """How far a sweep or comparison is."""
    words = ("finished", "running", "failed", "waiting")
    counts = ", ".join(f"{study[word]} {word}" for word in words if study[word])
    return f"{study['kind']} {study['name']}: {study['total']} cells, {counts}"
