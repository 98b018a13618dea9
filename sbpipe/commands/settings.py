"""The arguments that several commands share, and the settings they give. Knows no role."""

import argparse
from pathlib import Path
from typing import Any

from sbpipe.config import Config, known_keys, parse_assignment, read_toml, resolve, to_toml
from sbpipe.errors import ConfigError
from sbpipe.runs.directory import resumed

FLAGS = {
    "precision": "selector.precision",
    "sync_interval": "sync.interval",
    "policy": "selection.policy",
    "keep": "selection.keep",
    "seed": "seed",
    "mode": "mode",
    "bind": "link.bind",
    "connect": "link.connect",
    "keys": "link.keys",
    "selector_device": "selector.device",
    "orphan_timeout": "link.orphan_timeout_s",
    "spare": "checkpoint.spare",
    "allow": "selector.allow",
    "trainers": "train.ranks",
}


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The arguments that give settings."""
    parser.add_argument(
        "config", nargs="?", type=Path, metavar="CONFIG.toml", help="settings; without one, the defaults"
    )
    add_assignments(parser, "any setting; may be repeated")
    parser.add_argument(
        "--policy",
        metavar="NAME",
        help=f"rule that selects: {_offer('selection.policy')}",
    )
    parser.add_argument("--keep", type=_share, metavar="SHARE", help="target share of candidates kept (auto)")
    parser.add_argument(
        "--sync-interval",
        type=_steps,
        metavar="STEPS",
        help="steps between two pushes of the weights, or auto",
    )
    parser.add_argument(
        "--precision", metavar="NAME", help=f"precision of scoring: {_offer('selector.precision')}"
    )
    parser.add_argument("--mode", metavar="NAME", help=_offer("mode"))
    parser.add_argument("--seed", type=int, metavar="N", help="seed of everything random in the run (0)")
    parser.add_argument("--print-config", action="store_true", help="print the resolved settings and stop")


def add_assignments(parser: argparse._ActionsContainer, words: str) -> None:
    """The flag that gives any setting by its dotted key."""
    name = "assignments"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest=name, help=words)


def add_run_dir(parser: argparse.ArgumentParser) -> None:
    """The arguments that name a run directory."""
    parser.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="where to write (a new folder under runs/)"
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        type=Path,
        const=True,
        default=False,
        metavar="RUN",
        help="continue the run in RUN or --run-dir; a longer train.epochs, .steps or .seconds lengthens it",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the run in --run-dir")
    parser.add_argument(
        "--spare",
        metavar="DIR",
        help="where the last checkpoint goes if --run-dir does not take it (the system's temporary folder)",
    )


def _share(text: str) -> float | str:
    """A number, or a word: the settings check both, and say what is wrong with either."""
    try:
        return float(text)
    except ValueError:
        return text


def _steps(text: str) -> int | str:
    """A number of steps, or a word."""
    try:
        return int(text)
    except ValueError:
        return text


def _offer(key: str) -> str:
    """The choices of a setting, and its default."""
    known = known_keys()[key]
    return f"{', '.join(known.metadata['choices'])} ({known.default})"


def given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The dotted keys that the user gave by file, --set and flags; later ones win."""
    given = read_toml(args.config) if args.config is not None else {}
    given |= dict(parse_assignment(text) for text in args.assignments)
    given |= {
        key: getattr(args, flag) for flag, key in FLAGS.items() if getattr(args, flag, None) is not None
    }
    # `--device` is the device of the role that the command starts.
    if getattr(args, "device", None) is not None:
        given["selector.device" if args.command == "selector" else "train.device"] = args.device
    return given


def resolve_or_print(args: argparse.Namespace) -> tuple[Config | None, dict[str, Any]]:
    """The settings of a command, and the given ones; None and the given ones after --print-config."""
    given = given_settings(args)
    name_run(args)
    config = _resumed(args, given) if getattr(args, "resume", False) else resolve(given)
    if args.print_config:
        print(to_toml(config), end="")
        return None, given
    return config, given


def name_run(args: argparse.Namespace) -> None:
    """`--resume RUN` is short for `--run-dir RUN --resume`."""
    named = getattr(args, "resume", False)
    if not isinstance(named, Path):
        return
    if args.run_dir not in (None, named):
        way_out = "Name one run; a file of settings comes before --resume"
        raise ConfigError("--resume", str(named), f"--run-dir is {args.run_dir}", way_out)
    args.run_dir, args.resume = named, True


def _resumed(args: argparse.Namespace, given: dict[str, Any]) -> Config:
    if args.run_dir is None:
        raise ConfigError("--resume", True, "needs a run to continue", "Name it: --resume RUN")
    return resumed(args.run_dir, given)
