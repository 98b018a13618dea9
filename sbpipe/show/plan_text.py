"""A forecast in words, for a terminal. Knows neither runs nor how anything was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from sbpipe.machine.planner import Costs, Forecast
from sbpipe.show.report.table import Table, number
from sbpipe.show.terminal import percent

Plans = Sequence[tuple[str, Costs, Sequence[Forecast]]]
"""By precision: what it costs, what the settings give, and what keep = "auto" would."""


def plan_text(plans: Plans, sides: Mapping[str, Any], chosen: str, *, about_auto: str = "") -> str:
    """All tables; `about_auto` says how low keep = "auto" goes."""
    costs = next(costs for precision, costs, _ in plans if precision == chosen)
    return "\n\n".join(
        [_cost_table(costs, sides).as_text(), _plan_table(plans, chosen, about_auto).as_text()]
    )


def _cost_table(costs: Costs, sides: Mapping[str, Any]) -> Table:
    alone = (
        f", {100 * costs.step_alone:.0f} % of that while the selectors rest" if costs.step_alone < 1 else ""
    )
    score_alone = (
        f", {100 * costs.score_alone:.0f} % of that while the trainer rests" if costs.score_alone < 1 else ""
    )
    rows = [
        ["train step", f"{costs.step_ms:.1f} ms", f"batch of {costs.batch_size}{alone}"],
        ["load a train batch", f"{costs.load_ms:.3g} ms", "beside the step before"],
        ["publish", f"{costs.publish_ms:.3g} ms", "what a snapshot costs the trainer"],
        ["score", f"{costs.score_us:.0f} µs", f"one candidate: loaded, scored, judged{score_alone}"],
        ["lease", f"{costs.lease_ms:.3g} ms", "read, answered and written down, apart from its candidates"],
        ["message", f"{costs.message_ms:.3g} ms", "from one process to the other on this host, one way"],
        ["apply", f"{costs.apply_ms:.3g} ms", "new weights, by a selector"],
        ["transfer", f"{costs.transfer_ms:.3g} ms", f"of a snapshot over the wire{_rate(costs, sides)}"],
        [
            "latency",
            f"{costs.latency_ms:.3g} ms",
            "of the line between hosts, one way, on top of that; 0 on one host",
        ],
        ["second device", number(costs.second_speed), "train steps per train step of the first"],
    ]
    where = [f"{side}: {found['device']}" for side, found in sides.items()]
    title = f"costs, measured at the same time ({', '.join(where)})" if sides else "costs, as given"
    return Table(title, ["what", "costs", ""], rows)


def _rate(costs: Costs, sides: Mapping[str, Any]) -> str:
    if not costs.transfer_ms:
        return "; 0 in shared memory"
    return f", {sides['trainer']['weights_bytes'] / costs.transfer_ms / 1e3:.3g} MB/s" if sides else ""


def _plan_table(plans: Plans, chosen: str, about_auto: str) -> Table:
    rows = [
        _row(precision + (" *" if precision == chosen and plan is found[0] else ""), costs, plan)
        for precision, costs, found in plans
        for plan in found
    ]
    header = ["precision", "score", "keep", "interval", "selector", "out", "staleness", "candidates"]
    header += ["period", "idle", "k*", "filled", "k* filled"]
    notes = [
        "* the settings; a second row of a precision is what keep = auto would settle at",
        *filter(None, [about_auto]),
        "selector: its work for one step; out: train batches leased or on hand; staleness: steps, on average",
        "candidates: per second, over those of plain training",
        "period, idle, k*: where a batch that is late is waited for",
        f"filled, k* filled: where it is filled, and a step takes at most {_longest(plans):.1f} ms whatever "
        f"the selector does; plain training takes {plans[0][1].plain_ms:.1f} ms",
        f"k*: the worth from which it is ahead of {_against(plans)}",
    ]
    return Table("forecast", header, rows, notes=notes)


def _row(name: str, costs: Costs, plan: Forecast) -> list[str]:
    return [
        name,
        f"{costs.score_us:.0f} µs",
        f"{plan.keep:.3f}",
        str(plan.interval),
        f"{plan.selector_ms:.1f} ms",
        f"{plan.batches_out:.1f}",
        f"{plan.staleness:.1f}",
        f"× {plan.candidates:.2f}",
        f"{plan.period_ms:.1f} ms",
        percent(plan.idle),
        f"{plan.break_even_waiting:.2f}",
        percent(plan.fills),
        f"{plan.break_even:.2f}",
    ]


def _against(plans: Plans) -> str:
    speed = plans[0][2][0].data_parallel
    if speed is None:
        return "one device alone (how fast the second one trains is not known: --second-speed)"
    return f"data-parallel training on both devices (× {speed:.2f})"


def _longest(plans: Plans) -> float:
    return max(plan.fill_ms for _, _, found in plans for plan in found)
