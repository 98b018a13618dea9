"""`sbpipe plan`: what a run will do on this hardware, or on hardware of which one has the numbers."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sbpipe.commands.settings import add_settings, resolve_or_print
from sbpipe.config import Config
from sbpipe.errors import ConfigError
from sbpipe.machine import cores
from sbpipe.machine.line import transfer_ms
from sbpipe.machine.planner import Costs, Forecast, advice, remedy
from sbpipe.process.forecasting import about_auto, forecasts

HELP = "before you spend: period, idle time, staleness, keep rate and the worth at which it pays"
DESCRIPTION = """\
Measures a train step, scoring in each precision, loading, publishing, applying,
leases and messages in a short run of both sides, on the cores or devices that
`run` would give them, and says what a run will do. Takes less than half a minute.
Numbers for hardware that is not here replace what would be measured; with
--step-ms and --score-us nothing is measured at all.

  sbpipe plan configs/demo.toml
  sbpipe plan --step-ms 120 --score-us 95 --selectors 2 --second-speed 0.25
  sbpipe plan job.toml --worth 1.8             use it or not, with k of `sbpipe worth`
  sbpipe plan job.toml --selectors 8 --latency-ms 50 --link-gbps 1    on other hosts
"""
GIVEN = {
    "step_ms": "a train step",
    "load_ms": "loading one train batch, beside the step before",
    "score_us": "loading, scoring and judging one candidate, in microseconds",
    "lease_ms": "a lease apart from its candidates: read, its answer encoded and sent",
    "message_ms": "a message from process to process on one host, one way",
    "publish_ms": "what a publish costs the trainer",
    "apply_ms": "what new weights cost a selector",
    "transfer_ms": "the bytes of a snapshot over the line between hosts; or --link-gbps",
    "latency_ms": "a message's way between hosts, one way: half of what ping says",
    "stall_ms": "the line stops for so long, every --stall-every-ms",
    "stall_every_ms": "from one stop of the line to the next",
    "second_speed": "train steps of the second device per train step of the first",
    "efficiency": "of data-parallel training (0.9)",
}

_TRAINING = ("step_ms", "load_ms", "publish_ms", "message_ms", "step_spread")
_SCORING = ("score_us", "score_spread", "lease_ms", "apply_ms", "transfer_ms")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    add_settings(parser)
    for name, meaning in GIVEN.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="X", help=meaning)
    parser.add_argument("--selectors", type=int, default=1, metavar="N", help="selectors, a device each (1)")
    parser.add_argument(
        "--link-gbps", type=float, metavar="X", help="the trainer's line, in gigabits per second"
    )
    parser.add_argument("--hosts", type=int, default=1, metavar="N", help="that pull weights over it (1)")
    parser.add_argument(
        "--weights-mb", type=float, metavar="X", help="a snapshot (that of the model, if measured)"
    )
    parser.add_argument(
        "--ess",
        type=float,
        metavar="X",
        help="worth.ess of a run like it: in runs by steps or seconds keep = auto goes as low, if few pull",
    )
    parser.add_argument("--worth", type=float, metavar="K", help="k as `sbpipe worth` measured it")
    parser.add_argument("--seconds", type=float, default=8.0, metavar="S", help="how long to measure (8)")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--side", choices=("trainer", "selector"), help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Measure what was not given, forecast, and say."""
    config, given = resolve_or_print(args)
    if config is None:
        return 0
    if args.side:
        return _measure_side(args, config, given)
    _check(args, config)
    costs_by_precision, sides = _costs(args, config, given)
    plans = [
        (precision, costs, forecasts(costs, config, args.ess))
        for precision, costs in costs_by_precision.items()
    ]
    if args.json:
        print(json.dumps(_as_json(plans, sides, config), indent=2))
        return 0
    from sbpipe.show.plan_text import plan_text

    print(
        plan_text(plans, sides, chosen(costs_by_precision, config), about_auto=about_auto(config, args.ess))
    )
    precision = chosen(costs_by_precision, config)
    plan = next(found[0] for name, _, found in plans if name == precision)
    scoring_us = {name: costs.score_us for name, costs in costs_by_precision.items()}
    # Of costs that were given it is not known what another precision would cost.
    is_fastest = len(scoring_us) > 1 and scoring_us[precision] == min(scoring_us.values())
    print("\n".join(filter(None, ["", remedy(plan, is_fastest=is_fastest), advice(plan, args.worth)])))
    return 0


def chosen(costs: Mapping[str, Costs], config: Config) -> str:
    """The precision of the settings; of `auto`, the fastest that was measured."""
    asked = config.selector.precision
    return asked if asked in costs else min(costs, key=lambda name: costs[name].score_us)


def _measure_side(args: argparse.Namespace, config: Config, given: Mapping[str, Any]) -> int:
    own = config.train if args.side == "trainer" else config.selector
    # Before numpy and torch are imported: their thread pools are made of the cores they find.
    spare = cores.pin_role(args.side, own.device, own.threads)
    from sbpipe.process.gauging import measure_side

    measure_side(args.side, config, given, spare, lambda text: print(text, flush=True))
    return 0


def _check(args: argparse.Namespace, config: Config) -> None:
    for name in GIVEN:
        value = getattr(args, name)
        if value is not None and not 0.0 <= value < float("inf"):
            raise ConfigError(
                f"--{name.replace('_', '-')}", value, "is not a cost", "Give a number from 0 on"
            )
    for name in ("step_ms", "score_us"):
        if getattr(args, name) == 0.0:
            raise ConfigError(f"--{name.replace('_', '-')}", 0, "nothing is free", "Give a number above 0")
    for name in ("selectors", "hosts"):
        if getattr(args, name) < 1:
            raise ConfigError(
                f"--{name}", getattr(args, name), "must be at least 1", "Give how many there are"
            )
    for name in ("link_gbps", "weights_mb"):
        value = getattr(args, name)
        if value is not None and not 0.0 < value < float("inf"):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(flag, value, "must be above 0", "Give the line's rate, or a snapshot's size")
    if args.worth is not None and not 0.0 < args.worth < float("inf"):
        raise ConfigError("--worth", args.worth, "is no worth", "Give the k of `sbpipe worth`: above 0")
    if args.ess is not None and not 0.0 < args.ess <= 1.0:
        raise ConfigError("--ess", args.ess, "is no share", "Give the worth.ess of a run: above 0, at most 1")
    if (args.stall_ms or 0.0) > (args.stall_every_ms or float("inf")):
        raise ConfigError("--stall-ms", args.stall_ms, "lasts longer than --stall-every-ms", "Give less")
    if args.link_gbps and args.transfer_ms is not None:
        raise ConfigError("--link-gbps", args.link_gbps, "says what --transfer-ms says", "Give one of them")
    if not config.selection.traits.needs_scores:
        reason = f"policy '{config.selection.policy}' scores nothing: there is no pipeline to plan"
        raise ConfigError("selection.policy", config.selection.policy, reason, "Name one that selects")


def _costs(
    args: argparse.Namespace, config: Config, given: Mapping[str, Any]
) -> tuple[dict[str, Costs], dict[str, Any]]:
    """The costs by precision, given ones over measured ones, and where they were measured."""
    stated = {name: getattr(args, name) for name in GIVEN if getattr(args, name) is not None}
    shared = {"batch_size": config.train.batch_size, "selectors": args.selectors}
    if {"step_ms", "score_us"} <= set(stated):
        stated |= _transfer(args, config, None)
        return {"given": Costs(**shared, **stated)}, {}
    from sbpipe.process.gauge import measure_both

    sides = measure_both(given, config, args.seconds)
    trainer, selector = sides["trainer"], sides["selector"]
    stated |= _transfer(args, config, trainer["weights_bytes"])
    measured = {name: trainer[name] for name in _TRAINING}
    speed = _second_speed(trainer, selector)
    measured |= {} if speed is None else {"second_speed": speed}
    measured |= {
        "step_alone": _alone(trainer["alone"]["step_ms"], trainer["step_ms"]),
        "score_alone": _alone(selector["alone"]["score_us"], selector["precisions"]["fp32"]["score_us"]),
    }
    return {
        precision: Costs(**{**shared, **measured, **{name: found[name] for name in _SCORING}, **stated})
        for precision, found in selector["precisions"].items()
    }, sides


def _transfer(args: argparse.Namespace, config: Config, weights_bytes: int | None) -> dict[str, float]:
    """The bytes of a snapshot over the line that was named, if one was."""
    if args.link_gbps is None:
        return {}
    num_bytes = 1e6 * args.weights_mb if args.weights_mb else weights_bytes
    if num_bytes is None:
        raise ConfigError("--link-gbps", args.link_gbps, "of how many bytes?", "Give --weights-mb too")
    from sbpipe.weights.transfer import CREDIT

    found_ms = transfer_ms(
        num_bytes,
        bytes_per_s=args.link_gbps * 1e9 / 8,
        hosts=args.hosts,
        latency_ms=args.latency_ms or 0.0,
        window_bytes=CREDIT * config.link.chunk_mib * 2**20,
    )
    return {"transfer_ms": found_ms}


def _alone(alone: float, together: float) -> float:
    """What a side takes while the other rests, as a share of what it takes while both work."""
    # Others use the machine too: more than 1 is their doing, less than half as well.
    return min(1.0, max(0.5, alone / together))


def _second_speed(trainer: Mapping[str, Any], selector: Mapping[str, Any]) -> float | None:
    """Train steps of the selector's device per train step of the trainer's."""
    if selector["train_ms"]:
        return float(trainer["step_ms"] / selector["train_ms"])
    # Equal cores train equally fast; how fast others would is not measured.
    is_alike = (trainer["kind"], trainer["threads"]) == (selector["kind"], selector["threads"])
    return 1.0 if is_alike else None


def _as_json(
    plans: list[tuple[str, Costs, list[Forecast]]], sides: Mapping[str, Any], config: Config
) -> dict[str, Any]:
    rows = [
        {
            "precision": precision,
            "costs": asdict(costs),
            "plan": _plan_json(found[0]),
            "auto": _plan_json(found[-1]),
        }
        for precision, costs, found in plans
    ]
    precision = chosen({name: costs for name, costs, _ in plans}, config)
    return {"chosen": precision, "rows": rows, "sides": dict(sides)}


def _plan_json(plan: Forecast) -> dict[str, Any]:
    return asdict(plan) | {"break_even": plan.break_even, "break_even_waiting": plan.break_even_waiting}
