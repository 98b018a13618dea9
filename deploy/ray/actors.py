"""One run on a Ray cluster: the trainer and each selector are actors, which Ray places and starts again.

    python deploy/ray/actors.py --run-dir /shared/runs/first --selectors 2 --gpus 1 job.toml

What is not a flag of this file goes to both roles. The run directory must be on a file system that all nodes
share: the trainer leaves its address and a key there, selectors look there again whenever it has moved, and a
trainer that Ray starts anew resumes from the last checkpoint in it.

An actor holds its role as a child process: a role ends its process, and Ray wants to keep its own.
"""

import argparse
import ctypes
import json
import signal
import subprocess
import sys
from pathlib import Path

import ray

FINISHED, MISTAKE, STOPPED = 0, 2, 130
_PR_SET_PDEATHSIG = 1


def run_role(*words: str) -> int:
    """Run `sbpipe WORDS` to its end; its exit code."""
    return subprocess.run([sys.executable, "-m", "sbpipe", *words], preexec_fn=_end_with_the_actor).returncode


def _end_with_the_actor() -> None:
    # SIGTERM: a trainer whose actor is killed still leaves a checkpoint.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@ray.remote
class Trainer:
    """Owns the run; its end is the end of everything."""

    def train(self, run_dir: str, words: list[str]) -> int:
        """Begin the run, or resume it; the exit code."""
        run = Path(run_dir)
        if _is_finished(run):
            return FINISHED
        resume = ["--resume"] if (run / "config.json").exists() else []
        return run_role("trainer", *words, *resume, "--run-dir", run_dir, "--bind", "tcp://0.0.0.0:0")


@ray.remote
class Selector:
    """Disposable: it may be killed and started elsewhere at any time."""

    def serve(self, run_dir: str, words: list[str]) -> int:
        """Select until the run is over; the exit code."""
        code = run_role("selector", *words, "--connect", run_dir, "--orphan-timeout", "600")
        if code in (FINISHED, MISTAKE, STOPPED):
            return code
        # Ray calls it again, in an actor of its own.
        raise RuntimeError(f"the selector ended with exit code {code}")


def _is_finished(run: Path) -> bool:
    summary = run / "summary.json"
    return summary.exists() and json.loads(summary.read_text())["status"] == "finished"


def start(
    run_dir: str, words: list[str], num_selectors: int, num_gpus: float
) -> tuple[ray.ObjectRef, list[ray.actor.ActorHandle]]:
    """Start all actors; what will be the trainer's exit code, and the selectors."""
    device = ["--device", "cuda:0"] if num_gpus else ["--device", "cpu"]
    place = {"num_gpus": num_gpus, "num_cpus": 1}
    trainer = Trainer.options(**place, max_restarts=3, max_task_retries=3).remote()
    selectors = [
        # -1: for ever. `retry_exceptions` also for a role that failed while its actor lives.
        Selector.options(**place, max_restarts=-1, max_task_retries=-1).remote()
        for _ in range(num_selectors)
    ]
    for selector in selectors:
        selector.serve.options(retry_exceptions=True).remote(run_dir, [*words, *device])
    return trainer.train.remote(run_dir, [*words, *device]), selectors


def main() -> int:
    """Start everything and wait for the trainer; its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run-dir", required=True, help="on a file system that all nodes share")
    parser.add_argument("--selectors", type=int, default=1)
    parser.add_argument("--gpus", type=float, default=0, help="of each role; a share lets two use one")
    args, words = parser.parse_known_args()
    ray.init()
    training, selectors = start(str(Path(args.run_dir).resolve()), words, args.selectors, args.gpus)
    code: int = ray.get(training)
    # Held until here: Ray ends an actor that nobody holds.
    del selectors
    return code


if __name__ == "__main__":
    sys.exit(main())
