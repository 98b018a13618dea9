"""The command line: parses first, imports torch after, so that `--help` answers at once."""

import argparse
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from sbpipe import cores, launch
from sbpipe.config import Config, parse_assignment, read_toml, resolve, to_toml, warnings_of
from sbpipe.errors import ConfigError, DeviceError, SbpipeError
from sbpipe.progress import Display, Follower, lone_selector_line, summary_table
from sbpipe.run_dir import SUMMARY, TRAINER_EVENTS, RunDir, claim, default_path, resumed
from sbpipe.version import __version__

DESCRIPTION = """\
Train with Selective-Backprop on two devices at once: a selector on a cheap
device scores candidates and keeps the useful ones, a trainer on the main
device trains on them, and hands its weights back as it goes.
"""

EPILOG = """\
first steps
  sbpipe run                            both roles, on what this machine has
  sbpipe doctor                         what this machine has, and what run would choose
  sbpipe run --print-config             every setting, its value and its meaning
  sbpipe run configs/cifar10.toml --keep 0.25 --set optim.lr=0.05

two terminals, or two hosts
  sbpipe trainer --device cuda:0        in one
  sbpipe selector --device cuda:1       in the other, before or after

`sbpipe COMMAND --help` tells more. Exit codes: 0 done, 2 a mistake in the
input, 3 the other role is lost or disagrees, 130 stopped.
"""

FLAGS = {
    "precision": "selector.precision",
    "sync_interval": "sync.interval",
    "keep": "selection.keep",
    "seed": "seed",
    "mode": "mode",
    "bind": "link.bind",
    "connect": "link.connect",
    "keys": "link.keys",
    "selector_device": "selector.device",
    "orphan_timeout": "link.orphan_timeout_s",
}


def build_parser() -> argparse.ArgumentParser:
    """All commands and flags."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="sbpipe", description=DESCRIPTION, epilog=EPILOG, formatter_class=form)
    parser.add_argument("--version", action="version", version=f"sbpipe {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    run = commands.add_parser("run", help="both roles as supervised processes on what the machine has", formatter_class=form)
    _add_settings(run)
    _add_run_dir(run)
    run.add_argument("--device", metavar="NAME", help="the trainer's device, e.g. cuda:0 (auto)")
    run.add_argument("--selector-device", metavar="NAME", help="the selector's device, e.g. cuda:1 (auto)")
    run.add_argument("--selectors", type=int, default=1, metavar="N", help="number of selector processes (1)")

    trainer = commands.add_parser("trainer", help="the trainer alone; selectors connect to it", formatter_class=form)
    _add_settings(trainer)
    _add_run_dir(trainer)
    trainer.add_argument("--device", metavar="NAME", help="the trainer's device, e.g. cuda:0 (auto)")
    trainer.add_argument("--bind", metavar="ADDRESS", help="where to listen (tcp://127.0.0.1:5570; port 0 = any)")
    trainer.add_argument("--keys", metavar="DIR", help="CURVE keys made by `sbpipe keys`; needed on any address but loopback")

    selector = commands.add_parser("selector", help="a selector; takes all other settings from its trainer", formatter_class=form)
    _add_settings(selector)
    selector.add_argument("--device", metavar="NAME", help="the selector's device, e.g. cuda:1 (auto)")
    selector.add_argument("--connect", metavar="WHERE", help="the trainer's address or run directory (tcp://127.0.0.1:5570)")
    selector.add_argument("--keys", metavar="DIR", help="CURVE keys made by `sbpipe keys`")
    selector.add_argument("--orphan-timeout", type=float, metavar="S", help="seconds to wait for a lost trainer (60)")

    doctor = commands.add_parser("doctor", help="what this machine has, and what `run` would choose", formatter_class=form)
    doctor.add_argument("--json", action="store_true", help="as JSON")

    bench = commands.add_parser("bench", help="measure what the README claims, side by side on this machine", formatter_class=form)
    bench.add_argument("what", nargs="*", metavar="WHAT", help="selection, views, link, publish, startup, pipeline (all)")
    bench.add_argument("--json", action="store_true", help="as JSON")

    keys = commands.add_parser("keys", help="make CURVE keys for roles on different hosts", formatter_class=form)
    keys.add_argument("folder", type=Path, metavar="DIR", help="a new folder for trainer.key and selector.key")
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG.toml", help="settings; without one, the defaults")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments", help="any setting; may be repeated"
    )
    parser.add_argument("--keep", type=float, metavar="SHARE", help="target share of candidates kept (0.333)")
    parser.add_argument("--sync-interval", type=int, metavar="STEPS", help="steps between two pushes of the weights (1)")
    parser.add_argument("--precision", metavar="NAME", help="precision of scoring: fp32, bf16, fp16 (fp32)")
    parser.add_argument("--mode", metavar="NAME", help="pipelined, lockstep, fixed-lag, inline (pipelined)")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of everything random in the run (0)")
    parser.add_argument("--print-config", action="store_true", help="print the resolved settings and stop")


def _add_run_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="where to write (a new folder under runs/)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --run-dir")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in --run-dir")


def given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The dotted keys a user gave, by file, --set and flags, later ones winning."""
    given = read_toml(args.config) if args.config is not None else {}
    given |= dict(parse_assignment(text) for text in args.assignments)
    given |= {key: getattr(args, flag) for flag, key in FLAGS.items() if getattr(args, flag, None) is not None}
    if getattr(args, "device", None) is not None:
        given["selector.device" if args.command == "selector" else "train.device"] = args.device
    return given


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; exits with its code."""
    args = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    try:
        code = _COMMANDS[args.command](args)
    except SbpipeError as error:
        print(f"{launch.SAYS}{error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    except (RuntimeError, MemoryError) as error:
        code = _out_of_memory(error)
    _leave(code)


def _out_of_memory(error: RuntimeError | MemoryError) -> int:
    """A device that ran full in the middle of a run; anything else is a bug and goes on up."""
    from sbpipe import devices

    if not devices.is_out_of_memory(error):
        raise error
    way_out = "Lower train.batch_size, selector.batch_size or eval.batch_size, or set train.amp"
    print(f"sbpipe: out of memory: {error}. {way_out}", file=sys.stderr)
    return DeviceError.exit_code


def _leave(code: int) -> NoReturn:
    """Exit without the interpreter's tear-down once torch was loaded: its threads may still run then, and now and then abort it."""
    if "torch" not in sys.modules:
        sys.exit(code)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _resolve_or_print(args: argparse.Namespace) -> tuple[Config | None, dict[str, Any]]:
    given = given_settings(args)
    config = _resumed(args, given) if getattr(args, "resume", False) else resolve(given)
    if args.print_config:
        print(to_toml(config), end="")
        return None, given
    return config, given


def _resumed(args: argparse.Namespace, given: dict[str, Any]) -> Config:
    if args.run_dir is None:
        raise ConfigError("--resume", True, "needs a run to go on with", "Name it with --run-dir")
    return resumed(args.run_dir, given)


# --- commands --------------------------------------------------------------------------------------------------------------


def _trainer(args: argparse.Namespace) -> int:
    config, _ = _resolve_or_print(args)
    if config is None:
        return 0
    path = args.run_dir or default_path(config.mode)
    cores.pin_role("trainer", config.train.device, config.train.threads)
    from sbpipe import roles

    watcher = _Watcher(is_supervised=bool(os.environ.get(launch.SUPERVISED)))
    run = roles.run_inline if config.mode == "inline" else roles.run_trainer
    try:
        summary = run(config, path, resume=args.resume, overwrite=args.overwrite, on_open=watcher.open)
    finally:
        watcher.close()
    if not watcher.is_supervised:
        _report(path, summary)
    return 0 if summary["status"] == "finished" else 130


class _Watcher:
    """Shows a trainer's own progress and copies its log into the run directory, unless a supervisor does both."""

    def __init__(self, *, is_supervised: bool) -> None:
        self.is_supervised = is_supervised
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, run_dir: RunDir) -> None:
        if self.is_supervised:
            return
        (run_dir.path / "logs").mkdir(exist_ok=True)
        handler = logging.FileHandler(run_dir.path / "logs" / "trainer.log")
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logging.getLogger().addHandler(handler)
        self._thread = threading.Thread(target=self._watch, args=(run_dir.path / TRAINER_EVENTS,), name="progress", daemon=True)
        self._thread.start()

    def _watch(self, events: Path) -> None:
        follower, display = Follower(events), Display()
        follower.new_events()
        while not self._is_over.wait(0.5):
            launch.show_events(follower, display)
        launch.show_events(follower, display)

    def close(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(2.0)


def _selector(args: argparse.Namespace) -> int:
    config, given = _resolve_or_print(args)
    if config is None:
        return 0
    cores.pin_role("selector", config.selector.device, config.selector.threads)
    from sbpipe import roles

    display, begin = Display(), time.monotonic()
    is_supervised = bool(os.environ.get(launch.SUPERVISED))

    def show(stats: dict[str, float]) -> None:
        display.lines([lone_selector_line(stats, time.monotonic() - begin)])

    reason = roles.run_selector(config, given, None if is_supervised else show)
    logging.getLogger("sbpipe").info("done: %s", reason)
    return 130 if reason == "stopped" else 0


def _run(args: argparse.Namespace) -> int:
    config, given = _resolve_or_print(args)
    if config is None:
        return 0
    if config.mode == "inline":
        return _trainer(args)
    path = args.run_dir or default_path(config.mode)
    for warning in warnings_of(config):
        print(f"warning: {warning}", file=sys.stderr)
    claim(path, resume=args.resume, overwrite=args.overwrite)
    if args.selectors < 1:
        raise ConfigError("--selectors", args.selectors, "must be at least 1", "Use --mode inline to run in one process")
    is_finished = launch.run_both(config, given, path, num_selectors=args.selectors, resume=args.resume, overwrite=args.overwrite)
    _report(path, _read_summary(path))
    return 0 if is_finished else 130


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((path / SUMMARY).read_text(encoding="utf-8")))
    except OSError:
        return {}


def _report(path: Path, summary: dict[str, Any]) -> None:
    if summary:
        print(f"\n{summary['status']}\n{summary_table(summary)}")
    print(f"\nrun directory: {path}\nsummary:       {path / SUMMARY}")
    if summary.get("status") == "stopped":
        print(f"go on with:    sbpipe run --run-dir {path} --resume")


def _doctor(args: argparse.Namespace) -> int:
    from sbpipe import doctor

    return doctor.main(as_json=args.json)


def _bench(args: argparse.Namespace) -> int:
    from sbpipe import bench

    return bench.main(args.what, as_json=args.json)


def _keys(args: argparse.Namespace) -> int:
    from sbpipe.link.keys import make_keys

    trainer, selector = make_keys(args.folder)
    print(f"{trainer}   stays with the trainer:   sbpipe trainer --keys {args.folder} --bind tcp://0.0.0.0:5570")
    print(f"{selector}  goes to the selectors:    sbpipe selector --keys {args.folder} --connect tcp://HOST:5570")
    return 0


_COMMANDS = {"run": _run, "trainer": _trainer, "selector": _selector, "doctor": _doctor, "bench": _bench, "keys": _keys}
