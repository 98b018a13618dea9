"""What a reader needs to judge a table of results: n, hardware, versions, and what else was running."""

import os
import platform
from collections.abc import Sequence

from sbpipe.show.terminal import duration
from sbpipe.studies.core_shares import beside_words
from sbpipe.studies.plan import Plan
from sbpipe.studies.result import Result

_OWN_SIDE_THREADS = 0.7
"""Load above one per core that a study causes by itself: loaders, links, the study's own process."""
_FADING_S = 180.0
"""After this time hardly any of a past load is left in a mean over one minute."""


def facts_of(plan: Plan, results: Sequence[Result]) -> list[str]:
    """The facts that a reader needs to judge a table."""
    from sbpipe.machine.doctor.host import cpu

    finished = [result for result in results if result.is_finished]
    facts = [
        f"n = {_seeds_said(plan)}; {len(finished)} of {len(plan.cells)} cells finished; ± is the standard "
        "deviation",
    ]
    hosts = _said(finished, "host")
    # The results may be from another machine than this one.
    is_here = hosts in ([], [platform.node()])
    where = (
        f"processor: {cpu().model}, {len(os.sched_getaffinity(0))} cores"
        if is_here
        else f"hosts: {', '.join(hosts)}"
    )
    facts.append(where)
    roles = sorted(
        {str(result.summary.get(key)) for result in finished for key in ("device.trainer", "device.selector")}
        - {"None"}
    )
    facts += [f"devices: {', '.join(roles)}"] if roles else []
    versions, commits = _said(finished, "versions"), _said(finished, "git_commit") + _without_commit(finished)
    facts += [f"versions: {text}" for text in versions] + [f"commit: {text}" for text in commits]
    if max(len(hosts), len(versions), len(commits)) > 1:
        facts.append(
            "caution: cells were run on different hosts or by different versions; their times do not compare"
        )
    facts += _busy(results, len(os.sched_getaffinity(0)))
    spent_s = sum(result.state.process_s or 0.0 for result in results)
    beside = sum(result.state.beside > 0 for result in results)
    facts += [f"caution: {beside_words(beside, len(plan.cells))}"] if beside else []
    how = "some side by side" if beside else "one after another on the same cores"
    return [*facts, f"all runs together took {duration(spent_s)}, {how}, seed by seed"]


def _seeds_said(plan: Plan) -> str:
    """`3 (seeds 0, 1, 2)`, and the tasks with other seeds."""
    parts = [(task, plan.of_task(task).seeds) for task in plan.tasks]
    others = [f"{len(seeds)} for task {task}" for task, seeds in parts if seeds != plan.seeds]
    return ", ".join([f"{len(plan.seeds)} (seeds {', '.join(map(str, plan.seeds))})", *others])


def _said(results: Sequence[Result], key: str) -> list[str]:
    """The distinct values of a key in the cells' environments."""
    found = [result.environment.get(key) for result in results]
    texts = [
        ", ".join(f"{name} {of}" for name, of in value.items()) if isinstance(value, dict) else value
        for value in found
    ]
    return sorted({str(text) for text in texts if text})


def _without_commit(results: Sequence[Result]) -> list[str]:
    """The number of cells without a known commit, as one more value besides the known ones."""
    count = sum(not result.environment.get("git_commit") for result in results)
    return [f"unknown ({count} cell{'' if count == 1 else 's'})"] if count else []


def _busy(results: Sequence[Result], cores: int) -> list[str]:
    """A caution if the machine had other work besides the previous run, whose load is still in the mean.

    Cells side by side leave a load that is the study's own, so cells that begin soon after them do not count.
    """
    ends = [
        result.state.ended for result in results if result.state.beside and result.state.ended is not None
    ]
    alone = [result.state for result in results if not result.state.beside]
    clear = [state for state in alone if not any(0.0 <= state.started - ended < _FADING_S for ended in ends)]
    busiest = max((state.load or 0.0 for state in clear), default=0.0)
    if busiest <= cores + _OWN_SIDE_THREADS:
        return []
    return [
        f"caution: the machine was busy with other things (load {busiest:.1f} on {cores} cores); do not "
        "trust the times"
    ]
