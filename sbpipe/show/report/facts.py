"""The facts of one run and its end: the tiles at the head of its page and the tables at the foot.

Labels, units and meanings of numbers come from `sbpipe.runs.names`. Knows no page.
"""

from collections import Counter
from typing import Any

from sbpipe.config import Config, flatten, to_dict
from sbpipe.runs import Run
from sbpipe.runs.names import IN_SUMMARY, LOOP, NUMBERS, TROUBLE
from sbpipe.runs.numbers import is_number, number
from sbpipe.show.report.kept import never_kept_share
from sbpipe.show.report.table import Table
from sbpipe.show.terminal import label_of, percent, shown

HEAD = (
    "eval.error",
    "wall_s",
    "steps",
    "candidates",
    "candidates_per_s",
    "keep_rate",
    "trainer.idle_ratio",
    "selector.idle_ratio",
    "staleness.mean",
)
"""The first numbers a reader asks for; with the share of examples never kept they are ten."""
WITHOUT_END = {"wall_s": "train_s"}
FACTS = (
    "eval.loss",
    "staleness.mean",
    "fidelity.spearman",
    "scoring.agreement",
    "selection.swing",
    "selection.prediction_swing",
    "selection.ess",
    "selection.strength",
    "selection.guard",
    "selection.trust",
    "selection.label_trust",
    "worth.ess",
    "trainer.step_ms",
    "sync.snapshot_ms",
    "sync.bytes_per_s",
    "trained",
)
"""Numbers that explain those of the head."""
MOST_NOTES = 20
"""Warnings shown at the head; the events file has all."""


def status_of(run: Run) -> str:
    """How the run ended, by its files."""
    if run.of("failed") and not run.summary:
        return f"failed: {run.of('failed')[-1].get('error')}"
    return str(run.summary.get("status") or "no end recorded: still running, or killed")


def lead_of_run(run: Run) -> str:
    """What ran and how it ended, in one line."""
    policy, keep, seed = (run.setting(key) for key in ("selection.policy", "selection.keep", "seed"))
    if isinstance(keep, str):  # "auto": the measured keep rate
        keep = numbers_of(run).get("keep_rate")
    what = (
        status_of(run),
        " on ".join(str(name) for key in ("model.name", "data.name") if (name := run.setting(key))),
        f"{policy} keeps {100 * keep:.3g} %" if policy and keep and is_number(keep) else policy,
        run.setting("mode"),
        None if seed is None else f"seed {seed}",
    )
    return " · ".join(str(part) for part in what if part)


def numbers_of(run: Run) -> dict[str, Any]:
    """The numbers of the summary; without one, those of the last progress event."""
    if run.summary:
        return run.summary
    last = run.of("progress")[-1] if run.of("progress") else {}
    return {name: last.get(field) for field, name in IN_SUMMARY.items()}


def tiles_of(run: Run) -> list[tuple[str, str]]:
    """The ten numbers a reader asks for first, and the user's own metric, as far as they are known."""
    numbers, never_kept = numbers_of(run), never_kept_share(run)
    # A run that has not ended has no wall time, but a training time.
    names = [name if numbers.get(name) is not None else WITHOUT_END.get(name, name) for name in HEAD]
    if numbers.get("eval.metric") is not None:
        names.insert(1, "eval.metric")
    known = [
        (label_of(name, numbers), shown(name, numbers[name]))
        for name in names
        if numbers.get(name) is not None
    ]
    return [*known, *([] if never_kept is None else [("never kept", percent(never_kept))])]


def warnings_in(run: Run) -> list[str]:
    """The run's warnings and faults, and what could not be read."""
    numbers = numbers_of(run)
    trouble = [f"{NUMBERS[name].label}: {numbers[name]}" for name in TROUBLE if numbers.get(name)]
    resumes = [f"The run was resumed at step {event.get('step')}." for event in run.of("resumed")]
    said = [str(event.get("text")) for event in run.of("warning")]
    unsaid = [
        f"{count:,} more events of kind `{kind}` came, too many to be written."
        for kind, count in _left_out(run).items()
    ]
    return [
        *run.notes,
        *_few(said, "warnings"),
        *_few(resumes, "resumes"),
        *unsaid,
        *(["Faults: " + ", ".join(trouble) + "."] if trouble else []),
    ]


def _left_out(run: Run) -> Counter[str]:
    counts: Counter[str] = Counter()
    for event in run.of("left_out"):
        counts[str(event.get("of"))] += int(number(event, "count") or 0)
    return counts


def _few(notes: list[str], what: str) -> list[str]:
    """The first notes and the last one; the rest is counted."""
    if len(notes) <= MOST_NOTES:
        return notes
    return [*notes[: MOST_NOTES - 1], f"... {len(notes) - MOST_NOTES:,} more {what} ...", notes[-1]]


def fact_tables(run: Run) -> list[Table]:
    """The tables of facts, settings and hardware that are not empty."""
    return [table for table in (_facts(run), _settings(run), _hardware(run)) if table.rows]


def full_tables(run: Run) -> list[Table]:
    """Every setting and every number."""
    settings = [[key, written(value)] for key, value in flatten(run.config).items()]
    numbers = [
        [name, written(value), _meaning(name)] for name, value in numbers_of(run).items() if value is not None
    ]
    return [
        Table("All settings", ["setting", "value"], settings, "config.json, resolved."),
        Table("All numbers", ["name", "value", "meaning"], numbers, "summary.json."),
    ]


def written(value: Any) -> str:
    """A setting or a number as a table shows it."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _facts(run: Run) -> Table:
    numbers = numbers_of(run)
    known = [name for name in FACTS if numbers.get(name) is not None]
    rows = [[NUMBERS[name].label, shown(name, numbers[name]), _meaning(name)] for name in known]
    return Table("Facts", ["number", "value", "meaning"], rows, "What explains the numbers at the top.")


def _settings(run: Run) -> Table:
    defaults = flatten(to_dict(Config()))
    # Against today's defaults: a run's files do not hold those of its own version.
    changed = {key: value for key, value in flatten(run.config).items() if value != defaults.get(key)}
    rows = [[key, written(value), written(defaults.get(key, ""))] for key, value in changed.items()]
    return Table("Settings", ["setting", "value", "default"], rows, "Those that are not at their default.")


def _hardware(run: Run) -> Table:
    environment, numbers = run.environment, numbers_of(run)
    devices, versions = (_mapping(environment.get(name)) for name in ("devices", "versions"))
    found = {
        "trainer device": numbers.get("device.trainer") or devices.get("trainer"),
        "selector device": numbers.get("device.selector") or devices.get("selector"),
        "devices held": numbers.get("devices"),
        "selectors": ", ".join(run.selections),
        "host": environment.get("host"),
        "cores": environment.get("cores"),
        "platform": environment.get("platform"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "git commit": environment.get("git_commit"),
        "started": environment.get("started"),
    }
    rows = [[what, str(value)] for what, value in found.items() if value]
    return Table("Hardware and versions", ["what", "value"], rows, "What the run was made on.")


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _meaning(name: str) -> str:
    """The meaning of a number; for a mean over steps, its meaning in one step."""
    of_step = LOOP.get(name.removeprefix("selection."))
    if of_step is not None:
        return of_step.meaning
    return NUMBERS[name].meaning if name in NUMBERS else ""
