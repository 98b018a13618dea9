"""What settings make of costs: forecasts by the rules that a run itself goes by. Measures nothing."""

import math

from sbpipe.config import Config
from sbpipe.machine.line import Credit
from sbpipe.machine.planner import Bounds, Costs, Forecast, depth_reached, forecast, interval_reached


def about_auto(config: Config, effective: float | None) -> str:
    """How low keep = "auto" goes, in a sentence; "" where the policy has no bounds."""
    auto = config.bounds_of_auto
    if auto is None:
        return ""
    if auto.least == auto.usual:
        least = f"keep = auto goes no lower than {auto.usual:.3f} here"
        policy = config.selection.traits.keep_bounds
        is_by_epochs = policy is not None and policy.least < auto.least
        return f"{least}: a budget in epochs counts candidates" if is_by_epochs else least
    if effective is None:
        return (
            f"keep = auto: {auto.usual:.3f} or more is forecast; a run may go down to {auto.least:.3f}, the "
            "lower the fewer candidates do the pulling (worth.ess of such a run, given as --ess)"
        )
    return f"keep = auto goes no lower than {auto.least_at(effective):.3f} where worth.ess is {effective:.3f}"


def forecasts(costs: Costs, config: Config, effective: float | None = None) -> list[Forecast]:
    """What the settings give, and what keep = "auto" would give where they name a rate.

    `effective` is the share of the candidates that does the pulling at the model; None = not known.
    """
    auto = config.bounds_of_auto
    bounds = (0.0, 1.0) if auto is None else (auto.least_at(effective), auto.most)
    is_named = auto is None or isinstance(config.selection.keep, float)
    rates: list[float | None] = [config.selection.keep_rate] if is_named else []
    if auto is not None:
        rates.append(None)
    return [_forecast_at(costs, config, rate, bounds) for rate in rates]


def _forecast_at(costs: Costs, config: Config, keep: float | None, bounds: Bounds) -> Forecast:
    """At this keep rate; None = "auto"."""
    interval = config.sync_interval
    if config.sync.interval == "auto" and not config.is_clocked:
        interval = interval_reached(
            costs, keep, bounds, depth=config.sync_depth, max_staleness=config.sync.max_staleness
        )

    def lending(costs: Costs, keep: float) -> Credit:
        return credit_of(costs, keep, interval, config)

    return forecast(costs, keep=keep, interval=interval, bounds=bounds, lending=lending)


def credit_of(costs: Costs, keep: float, interval: int, config: Config) -> Credit:
    """What the trainer's own rules would have out, with selectors that are alike."""
    # Where a plan is made, and not for every command: these bring numpy.
    from sbpipe.trainer.stream import credit, fleet
    from sbpipe.trainer.stream.pace import KNOWN_AFTER, Pace

    step_s, rate = costs.loop_ms / 1e3, 1e6 / costs.score_us
    demand, depth, bound = costs.batch_size / keep, config.sync_depth, config.sync.max_staleness
    if config.sync.depth == "auto" and not config.is_clocked:
        depth = depth_reached(costs, interval=interval, max_staleness=bound)
    pace = Pace()
    for step in range(KNOWN_AFTER + 1):
        pace.started(step * step_s, asked_at=step * step_s)
    pace.viewed(costs.load_ms / 1e3)
    ahead = pace.ahead(demand / (rate * costs.selectors)) if config.fills else 0.0
    base = min(depth, depth - 1 + ahead)
    if costs.selectors < fleet.MANY:
        whole = demand * credit.PIECE if ahead else demand
        in_time = max(rate * step_s, config.score_batch_size) if config.fills else math.inf
        return Credit(min(whole, in_time), max(base, 1.0))
    planned = fleet.plan(
        batch_size=costs.batch_size,
        keep=keep,
        rates={str(number): rate for number in range(costs.selectors)},
        step_s=step_s,
        is_set=config.selection.traits.chooses_sets,
        least=fleet.least_of(config),
    )
    most = max(base, bound - interval) if bound else math.inf
    batches = min(most, max(base, planned.ahead + fleet.MARGIN)) if depth > 1 else base
    return Credit(planned.leases["0"], max(batches, 1.0))
