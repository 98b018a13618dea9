"""What one run was and how it ended, in numbers and words: tiles and tables. Knows no page."""

from typing import Any

from sbpipe.config import flatten
from sbpipe.runs import Run
from sbpipe.show.report.kept import never_kept_share
from sbpipe.show.report.table import Table
from sbpipe.show.terminal import FIRST, Rows, percent

TILES: Rows = (
    *FIRST,
    ("selector idle", "selector.idle_ratio", percent),
    ("staleness (steps)", "staleness.mean", "{:.2f}".format),
    ("fidelity", "fidelity.spearman", "{:.3f}".format),
    ("scores rank like fp32", "scoring.agreement", "{:.3f}".format),
    ("swing (1 = calm)", "selection.swing", "{:.2f}".format),
    ("effective sample size", "selection.ess", "{:.2f}".format),
    ("candidates / s", "candidates_per_s", "{:,.0f}".format),
    ("weights sent", "sync.bytes_per_s", lambda rate: f"{rate / 1e6:,.1f} MB/s"),
)
PROGRESS_NAMES = {
    "error": "eval.error",
    "elapsed_s": "wall_s",
    "step": "steps",
    "candidates": "candidates",
    "keep_rate": "keep_rate",
    "idle": "trainer.idle_ratio",
    "selector_idle": "selector.idle_ratio",
    "staleness": "staleness.mean",
    "candidates_per_s": "candidates_per_s",
    "swing": "selection.swing",
    "ess": "selection.ess",
    "strength": "selection.strength",
    "guard": "selection.guard",
}
"""What a progress event calls the numbers of a summary: a run that has no summary yet is shown by its last
one.
"""
SETTINGS = (
    "mode", "seed", "data.name", "data.examples", "model.name", "train.batch_size", "train.epochs", "train.steps", "train.seconds",
    "train.amp", "optim.name", "optim.lr", "schedule.name", "selection.policy", "selection.keep", "selection.history", "sync.interval",
    "sync.depth", "sync.max_staleness", "sync.lag", "sync.dtype", "selector.precision", "view.score",
)  # fmt: skip
TROUBLE = (
    "selector.lost",
    "lease.expired",
    "lease.fenced",
    "lease.fallback",
    "link.dropped",
    "checkpoint.failed",
    "events.lost",
)


def status_of(run: Run) -> str:
    """How the run ended, as far as its files say."""
    if run.of("failed") and not run.summary:
        return f"failed: {run.of('failed')[-1].get('error')}"
    return str(run.summary.get("status") or "no end recorded: still running, or killed")


def numbers_of(run: Run) -> dict[str, Any]:
    """The numbers of the summary; of the last progress event while there is none."""
    if run.summary:
        return run.summary
    last = run.of("progress")[-1] if run.of("progress") else {}
    return {name: last.get(key) for key, name in PROGRESS_NAMES.items()}


def tiles_of(run: Run) -> list[tuple[str, str]]:
    """The numbers a reader asks for first."""
    numbers = numbers_of(run)
    tiles = [(label, form(numbers[key])) for label, key, form in TILES if numbers.get(key) is not None]
    counted = [event for event in run.of("scores") if sum(event.get("times_kept") or [])]
    return [*tiles, *([("never kept", percent(never_kept_share(counted[-1])))] if counted else [])]


def warnings_in(run: Run) -> list[str]:
    """What the run warned of, what went wrong, and what could not be read."""
    numbers = numbers_of(run)
    trouble = [f"{name} = {numbers[name]}" for name in TROUBLE if numbers.get(name)]
    resumes = [f"The run was resumed at step {event.get('step')}." for event in run.of("resumed")]
    said = [str(event.get("text")) for event in run.of("warning")]
    return [*run.notes, *said, *resumes, *(["On the way: " + ", ".join(trouble) + "."] if trouble else [])]


def fact_tables(run: Run) -> list[Table]:
    """The settings that matter, and on what the run was made."""
    return [table for table in (_settings(run), _hardware(run)) if table.rows]


def folded_tables(run: Run) -> list[Table]:
    """Every setting and every number."""
    settings = [[key, _said(value)] for key, value in flatten(run.config).items()]
    numbers = [[name, _said(value)] for name, value in numbers_of(run).items() if value is not None]
    return [
        Table("All settings", ["setting", "value"], settings, "config.json, resolved."),
        Table(
            "All numbers",
            ["name", "value"],
            numbers,
            "summary.json; docs/events.md says what each name means.",
        ),
    ]


def _settings(run: Run) -> Table:
    rows = [
        [key, _said(value)]
        for key in SETTINGS
        if (value := run.setting(key)) not in (None, "", 0, 0.0) or key == "seed"
    ]
    return Table(
        "Settings",
        ["setting", "value"],
        [row for row in rows if row[1] != "None"],
        "Those that matter most; 0 and off are left out.",
    )


def _hardware(run: Run) -> Table:
    environment, numbers = run.environment, numbers_of(run)
    found = environment.get("devices") or {}
    rows: list[list[Any]] = [
        ["status", status_of(run)],
        ["trainer device", numbers.get("device.trainer") or found.get("trainer")],
        ["selector device", numbers.get("device.selector") or found.get("selector")],
        ["devices held", numbers.get("devices")],
        ["selectors", ", ".join(run.selections)],
        ["host", environment.get("host")],
        ["cores", environment.get("cores")],
        ["platform", environment.get("platform")],
        [
            "versions",
            ", ".join(f"{name} {version}" for name, version in (environment.get("versions") or {}).items()),
        ],
        ["git commit", environment.get("git_commit")],
        ["started", environment.get("started")],
    ]
    return Table(
        "Hardware and versions",
        ["what", "value"],
        [[what, str(value)] for what, value in rows if value],
        "On what it was made.",
    )


def _said(value: Any) -> str:
    return (
        f"{value:.6g}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int) and abs(value) > 9999
        else str(value)
    )
