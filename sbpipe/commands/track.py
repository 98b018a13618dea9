"""`sbpipe track`: a run's numbers to TensorBoard, W&B or MLflow."""

import argparse
import json
import signal
import threading
from pathlib import Path
from typing import Any

from sbpipe.config import flatten
from sbpipe.errors import ConfigError, RunDirError
from sbpipe.runs.names.files import CONFIG

HELP = "copy a run to TensorBoard, W&B or MLflow, while it runs or afterwards"
DESCRIPTION = """\
Copy the numbers of a run to trackers. Follows a running run until it ends; a
run that has ended is copied at once. Copying again adds what is new; remove
RUN/trackers to copy everything again. `sbpipe run` does this by itself for trackers
that are switched on by settings, e.g. --set trackers.tensorboard=true.

  --tensorboard   files in RUN/tensorboard:  tensorboard --logdir RUN/tensorboard
  --wandb         a run of the project at W&B; with WANDB_MODE=offline only in RUN/wandb
  --mlflow        a run at MLFLOW_TRACKING_URI, or without it in RUN/mlruns:
                  MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri RUN/mlruns
"""


_WHERE = {
    "tensorboard": "tensorboard --logdir {run}/tensorboard",
    "wandb": "its project at W&B, or {run}/wandb if offline",
    "mlflow": "MLFLOW_TRACKING_URI, or {run}/mlruns without it",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="the run directory")
    for name in ("tensorboard", "wandb", "mlflow"):
        parser.add_argument(
            f"--{name}", action="append_const", const=name, dest="trackers", help=f"copy to {name}"
        )
    parser.add_argument(
        "--project",
        metavar="NAME",
        help="project or experiment there (trackers.project of the run, or sbpipe)",
    )
    parser.add_argument(
        "--since", type=float, metavar="T", help="wait for a run that begins after this time (s, Unix)"
    )
    until = parser.add_mutually_exclusive_group()
    until.add_argument(
        "--follow",
        action="store_false",
        dest="once",
        default=False,
        help="until the run has ended (the default)",
    )
    until.add_argument("--once", action="store_true", help="what is there now, and no more")


def run(args: argparse.Namespace) -> int:
    """Copy until the run has ended."""
    from sbpipe.show import trackers

    is_stopped = _stop_on_signal()
    # It may start with a run, before the run has replaced an earlier run's files in the same directory.
    if args.since is not None:
        trackers.wait_for_begin(args.run_dir, args.since, is_stopped)
    settings = _settings_of(args.run_dir)
    names = list(dict.fromkeys(args.trackers or trackers.switched_on(settings)))
    if not names:
        raise ConfigError(
            "trackers",
            "none",
            f"nothing says where to copy {args.run_dir}",
            "Add --tensorboard, --wandb or --mlflow",
        )
    trackers.check_installed(names)
    project = args.project or settings.get("trackers.project") or trackers.PROJECT
    run = trackers.Tracked(args.run_dir.resolve(), str(project), settings)
    copier = trackers.Copier(run, [trackers.TRACKERS[name]() for name in names])
    is_whole = copier.run(is_stopped, once=args.once)
    if is_stopped.is_set():
        return 130
    if is_whole:
        print("\n".join(f"{name}: {_WHERE[name].format(run=args.run_dir)}" for name in names))
    return 0 if is_whole else 1


def _settings_of(path: Path) -> dict[str, Any]:
    try:
        return flatten(json.loads((path / CONFIG).read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError, RecursionError, ConfigError):
        raise RunDirError(
            f"{path} holds no run that can be read ({CONFIG} is missing or cut). Name a run directory"
        ) from None


def _stop_on_signal() -> threading.Event:
    """An event set by the first Ctrl-C or SIGTERM; a second one raises, in case a library hangs."""
    is_stopped = threading.Event()

    def on_signal(*_: object) -> None:
        if is_stopped.is_set():
            raise KeyboardInterrupt
        is_stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    return is_stopped
