"""A sweep as a table, a row per point. Text only; the numbers come from the analysis."""

from collections.abc import Sequence
from typing import Any

from sbpipe.runs.study.study import short, spoken
from sbpipe.show.report.comparison_tables import count
from sbpipe.show.report.table import NOTHING, Table, number, percent_pm, seconds_pm
from sbpipe.show.terminal import percent


def sweep_table(
    name: str, keys: Sequence[str], analysis: dict[str, Any], cautions: Sequence[str] = ()
) -> Table:
    """One row per arm and point of the grid over these keys; the time is to the middle target."""
    targets = analysis["targets"]
    factor = targets[len(targets) // 2]["factor"]
    header = ["arm", *map(short, keys), "n", "test error", "staleness", "fidelity", "trainer idle"]
    notes = [
        "± is the standard deviation over n seeds; time is until the end of training, start-up included, "
        "measuring excluded",
        f"to {factor:g}x is the time until the error is at most {factor:g} times "
        f"{percent(analysis['reference_error'])}, the first row's",
        *(f"caution: {text}" for text in cautions),
    ]
    rows = [_row(point, keys) for point in analysis["points"]]
    return Table(f"sweep {name}", [*header, "sent", "time", f"to {factor:g}x"], rows, notes=notes)


def _row(point: dict[str, Any], keys: Sequence[str]) -> list[str]:
    sent, reached = point["bytes_per_s_mean"], f"{point['reached']}/{point['n']}"
    is_reached_by_all = 0 < point["n"] == point["reached"]
    return [
        point["arm"],
        *(spoken(point["swept"][key]) if key in point["swept"] else NOTHING for key in keys),
        count(point),
        percent_pm(point["error_mean"], point["error_sd"]),
        number(point["staleness_mean"]),
        number(point["fidelity_mean"]),
        percent(point["idle_mean"]),
        NOTHING if sent is None else f"{sent / 2**20:.2f} MiB/s",
        seconds_pm(point["wall_mean"], point["wall_sd"]),
        f"{point['time_to_target_mean']:.1f}s" if is_reached_by_all else f"{NOTHING} ({reached})",
    ]
