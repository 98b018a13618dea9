"""results.csv and results.json: a flat row per cell that ended. Rewritten whole, so a kill loses nothing."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sbpipe.config import flatten, resolve, to_dict
from sbpipe.files import write_atomically
from sbpipe.runs.events import plain
from sbpipe.runs.numbers import is_number
from sbpipe.runs.study import RESULTS
from sbpipe.runs.study.analysis import cost
from sbpipe.studies.plan import TASK, Plan
from sbpipe.studies.provenance import facts_of
from sbpipe.studies.result import Result

CSV = "results.csv"


def row_of(result: Result, plan: Plan) -> dict[str, Any]:
    """A cell's row: its place in the plan, how it ended, and its summary's numbers."""
    settings = flatten(to_dict(resolve(result.cell.settings)))
    place = {key: settings[key] for key in dict.fromkeys([*plan.swept, *plan.varied])}
    # The seed is a column of the plan already.
    numbers = {name: value for name, value in result.summary.items() if is_number(value) and name != "seed"}
    went = {"status": result.state.status, "process_s": result.state.process_s, "failure": result.state.error}
    task = {TASK: result.cell.task} if plan.tasks else {}
    return {
        "cell": result.cell.cell,
        "arm": result.cell.arm,
        **task,
        "seed": result.cell.seed,
        **place,
        **went,
        **numbers,
    }


def times_of(result: Result, plan: Plan, analysis: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's time as in the tables, its cost, and when it reached each target."""
    trial = result.trial
    if trial.time_s is None:
        return {}
    row: dict[str, Any] = {"time_s": trial.time_s, "device_s": trial.time_s * trial.devices}
    if plan.price:
        row["cost"] = cost(trial.time_s, trial.devices, plan.price)
    own = analysis.get("tasks", {}).get(result.cell.task, {}) if plan.tasks else analysis
    for target in own.get("targets", []):
        row[f"time_to_{target['factor']:g}x_s"] = trial.time_to(target["error"])
    return row


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV; a column that a row lacks stays empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write_results(path: Path, plan: Plan, results: Sequence[Result], analysis: Mapping[str, Any]) -> None:
    """Write both files to a study's folder."""
    rows = [row_of(result, plan) | times_of(result, plan, analysis) for result in results]
    write_atomically(path / CSV, to_csv(rows))
    whole = plain(
        {"kind": plan.kind, "facts": facts_of(plan, results), "rows": rows, "analysis": dict(analysis)}
    )
    write_atomically(path / RESULTS, json.dumps(whole, indent=2, allow_nan=False) + "\n")
