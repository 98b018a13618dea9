"""The doctor: what it says of made-up machines, that it sees this one as it is, and that it leaves it so."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.runs import HANG_S

from sbpipe.config import Config
from sbpipe.link.private import VARIABLE
from sbpipe.machine import cores, devices, doctor, smi
from sbpipe.machine.doctor import cgroups, choice, host, survey
from sbpipe.machine.doctor.advice import GIB, MIB, advise
from sbpipe.machine.doctor.facts import (
    Accelerator,
    Cpu,
    Facts,
    HostMemory,
    Library,
    Role,
    RunsFolder,
    SharedMemory,
    SocketsFolder,
)
from sbpipe.machine.doctor.printout import ranges, to_json, to_page

CORES = tuple(range(8))
HEALTHY = Facts(
    cpu=Cpu("a processor", CORES),
    memory=HostMemory(32 * GIB, 30 * GIB),
    sockets=SocketsFolder("/tmp/sbpipe-1000"),
    libraries=(Library("python", "3.12.1"), Library("torch", "2.6.0"), Library("torchvision", "0.21.0")),
    runs=RunsFolder("runs", 100 * GIB),
    shared_memory=SharedMemory("/dev/shm", 16 * GIB, 16 * GIB, 5 * GIB),
    trainer=Role("cpu", CORES[:4], 4, is_pinned=True),
    selector=Role("cpu", CORES[4:], 4, is_pinned=True),
)
UNPINNED = Role("cpu", CORES, 8, is_pinned=False)


def warning(facts: Facts) -> str:
    """The text of the only advice, which stops nothing."""
    (advice,) = advise(facts)
    assert not advice.is_stop
    return advice.text


def stop(facts: Facts) -> str:
    """The text of the only advice, which stops a run."""
    (advice,) = advise(facts)
    assert advice.is_stop
    return advice.text


# --- advice on machines made up of a few numbers --------------------------------------------------


def test_a_healthy_machine_gets_no_advice() -> None:
    assert advise(HEALTHY) == []


def test_one_core_is_warned_of_with_the_settings_that_cannot_help_and_one_that_does() -> None:
    text = warning(replace(HEALTHY, cpu=Cpu("small", (3,))))
    assert "only one core" in text
    assert "selector.threads" in text
    assert "--mode inline" in text


@pytest.mark.parametrize(("quota", "threads"), [(0.5, 1), (2.0, 1), (5.5, 2)])
def test_a_quota_below_the_cores_is_answered_with_threads_that_fit_it(quota: float, threads: int) -> None:
    text = warning(replace(HEALTHY, cpu=Cpu("contained", CORES, quota)))
    assert f"the time of only {quota:g}" in text
    assert f"train.threads={threads} --set selector.threads={threads}" in text


def test_a_quota_of_all_cores_is_no_matter() -> None:
    assert advise(replace(HEALTHY, cpu=Cpu("contained", CORES, 8.0))) == []


def test_the_shared_memory_docker_gives_is_warned_of_with_the_largest_model_that_fits() -> None:
    fits = choice.largest_snapshot(64 * MIB)
    text = warning(replace(HEALTHY, shared_memory=SharedMemory("/dev/shm", 64 * MIB, 64 * MIB, fits)))
    assert "64.0 MiB free: a model above 21.3 MiB" in text
    assert "--shm-size" in text


def test_no_shared_memory_is_only_a_warning() -> None:
    facts = replace(HEALTHY, shared_memory=SharedMemory("/dev/shm", 0, 0, 0, "Read-only file system"))
    assert "Read-only file system): weights will be pulled" in warning(facts)


def test_little_memory_is_warned_of_with_the_limit_that_makes_it_little() -> None:
    text = warning(replace(HEALTHY, memory=HostMemory(64 * GIB, GIB, limit_bytes=GIB)))
    assert "only 1.0 GiB of memory available (limit 1.0 GiB)" in text
    assert "--memory" in text


def test_a_torch_without_cuda_beside_an_nvidia_driver_is_told_from_one_that_sees_no_device() -> None:
    assert "built without CUDA" in warning(replace(HEALTHY, has_nvidia_driver=True))
    assert "(CUDA 12.6) sees no device" in warning(
        replace(HEALTHY, has_nvidia_driver=True, torch_cuda="12.6")
    )


def test_roles_that_would_both_take_all_cores_are_told_how_to_split_them() -> None:
    assert "--set train.device=cpu --set selector.device=cpu" in warning(
        replace(HEALTHY, trainer=UNPINNED, selector=UNPINNED)
    )


def test_a_full_accelerator_is_warned_of() -> None:
    devices = (
        Accelerator("cuda:0", "A100", 40 * GIB, 100 * MIB),
        Accelerator("cuda:1", "A100", 40 * GIB, 39 * GIB),
    )
    assert warning(replace(HEALTHY, accelerators=devices)).startswith("cuda:0 has only 100 MiB free")


def test_an_accelerator_that_others_use_is_warned_of_and_a_desktop_on_it_is_not() -> None:
    idle = Accelerator("cuda:0", "RTX 3090", 24 * GIB, 23 * GIB + 600 * MIB, "8.6", True, True, 2)
    assert advise(replace(HEALTHY, accelerators=(idle,))) == []
    busy = replace(idle, busy_percent=71)
    assert "cuda:0 is shared with others (71 % busy, 424 MiB of 24.0 GiB taken)" in warning(
        replace(HEALTHY, accelerators=(busy,))
    )
    full = replace(idle, free_bytes=12 * GIB, busy_percent=None)
    assert "12.0 GiB of 24.0 GiB taken" in warning(replace(HEALTHY, accelerators=(full,)))


def test_a_trainer_that_would_take_the_older_of_two_accelerators_is_told_of_the_newer() -> None:
    old, new = Accelerator("cuda:0", "T4", capability="7.5"), Accelerator("cuda:1", "H100", capability="9.0")
    trainer = Role("cuda:0", CORES, 8, is_pinned=False)
    text = warning(replace(HEALTHY, accelerators=(old, new), trainer=trainer))
    assert text.endswith("--set train.device=cuda:1 --set selector.device=cuda:0")
    in_order = (replace(new, device="cuda:0"), replace(old, device="cuda:1"))
    assert advise(replace(HEALTHY, accelerators=in_order, trainer=trainer)) == []
    assert advise(replace(HEALTHY, accelerators=(Accelerator("xpu:0", "A770"), new), trainer=trainer)) == []


def test_the_page_says_what_an_accelerator_can_and_why_a_selector_is_on_the_cpu_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cores, "may_have_accelerator", lambda: True)
    turing = Accelerator("cuda:0", "T4", 15 * GIB, 15 * GIB, "7.5", False, False, 0, False)
    facts = replace(
        HEALTHY,
        accelerators=(turing,),
        trainer=replace(UNPINNED, device="cuda:0"),
        selector=choice.selector(Config(), "cuda:0", "cpu"),
    )
    page = to_page(facts, advise(facts), width=132)
    assert "T4, 15.0 GiB free of 15.0 GiB, compute capability 7.5, no TF32, no bf16, 0 % busy" in page
    assert "cuda:0, the only accelerator, is the trainer's; the other cores feed it" in page


def test_what_nvidia_tells_is_read_by_the_place_on_the_bus_and_gaps_are_gaps() -> None:
    told = smi.read(
        "00000000:3B:00.0, 550.54, 12, Disabled, Default\n00010000:AF:00.0, 550.54, [N/A], [N/A], X\n"
    )
    assert told[smi.place(0, 0x3B, 0)]["utilization.gpu"] == "12"
    assert told[smi.place(0x10000, 0xAF, 0)] == {"driver_version": "550.54", "compute_mode": "X"}
    assert smi.read("nvidia-smi has failed") == {}


def test_broken_torch_stops_a_run_and_broken_torchvision_does_not() -> None:
    torch = Library("torch", "2.6.0", "OSError: libcudart.so.12: cannot open shared object file")
    vision = Library("torchvision", "0.20.0", "RuntimeError: operator torchvision::nms does not exist")
    assert "libcudart.so.12" in stop(replace(HEALTHY, libraries=(torch, vision), trainer=None, selector=None))
    assert "torchvision::nms" in warning(replace(HEALTHY, libraries=(Library("torch", "2.6.0"), vision)))


@pytest.mark.parametrize(("omp", "num_advice"), [("4", 0), ("7", 1), ("many", 1)])
def test_an_omp_num_threads_that_pinned_roles_ignore_is_warned_of(omp: str, num_advice: int) -> None:
    facts = replace(HEALTHY, cpu=replace(HEALTHY.cpu, omp_num_threads=omp))
    assert ["has no effect" in item.text for item in advise(facts)] == [True] * num_advice
    assert advise(replace(facts, trainer=replace(UNPINNED, device="cuda:0"), selector=UNPINNED)) == []


def test_what_stops_a_run_is_said_first() -> None:
    facts = replace(HEALTHY, cpu=Cpu("small", (0,)), runs=RunsFolder("runs", GIB, "/mnt is not writable"))
    assert [item.is_stop for item in advise(facts)] == [True, False]


# --- the page -------------------------------------------------------------------------------------


def test_the_page_is_short_and_keeps_to_the_width_of_the_terminal() -> None:
    gpus = (Accelerator("cuda:0", "NVIDIA A100-SXM4-40GB", 40 * GIB, 39 * GIB), Accelerator("xpu:0", "A770"))
    facts = replace(HEALTHY, accelerators=gpus, cpu=Cpu("small", (0,)))
    page = to_page(facts, advise(facts), width=80)
    assert "cuda:0 NVIDIA A100-SXM4-40GB, 39.0 GiB free of 40.0 GiB" in page
    assert "would work here, with 1 warning." in page
    assert page.count("\n") < 30
    assert max(map(len, page.splitlines())) <= 80


def test_page_and_json_agree_that_a_run_would_not_work() -> None:
    facts = replace(HEALTHY, trainer=None, selector=None, device_problem="RuntimeError: CUDA driver error")
    advice = advise(facts)
    assert "STOP" in to_page(facts, advice)
    assert json.loads(to_json(facts, advice))["works"] is False


def test_cores_are_written_as_ranges() -> None:
    assert ranges((0, 1, 2, 3, 8, 10, 11)) == "0-3,8,10-11"


# --- this machine ---------------------------------------------------------------------------------


def test_json_names_what_run_would_choose(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    affinity = os.sched_getaffinity(0)
    code = doctor.main(as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["trainer"]["device"], facts["selector"]["device"]) == devices.plan()
    assert (code == 0) == facts["works"]
    assert (list(tmp_path.iterdir()), os.sched_getaffinity(0)) == ([], affinity), "the doctor only looks"


@pytest.mark.parametrize("role", ["trainer", "selector"])
@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_role_is_said_to_get_the_cores_that_a_process_of_that_role_gets(role: str, device: str) -> None:
    program = (
        f"import os; from sbpipe.machine import cores; cores.pin_role({role!r}, {device!r}, 0); "
        "print(sorted(os.sched_getaffinity(0)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S, check=True
    )
    assert list(choice.role(role, "cpu", device, 0).cores) == json.loads(done.stdout)


def test_a_role_on_an_accelerator_keeps_all_cores_and_the_threads_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    free = choice.role("trainer", "cuda:0", "cuda:0", 0)
    assert (free.is_pinned, free.threads) == (False, 7)
    assert choice.role("trainer", "cuda:0", "cuda:0", 1).cores == tuple(cores.share("trainer", 1))


def test_a_folder_of_sockets_that_others_can_reach_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert host.sockets_folder() == SocketsFolder(str(tmp_path))
    tmp_path.chmod(0o755)
    open_to_all = host.sockets_folder()
    tmp_path.chmod(0o700)
    assert "others may reach into it" in stop(replace(HEALTHY, sockets=open_to_all))


def test_looking_at_shared_memory_leaves_nothing_there() -> None:
    choice.shared_memory()
    assert not list(Path("/dev/shm").glob(f"sbpipe-doctor-{os.getpid()}"))


@pytest.mark.parametrize(
    ("group", "files"),
    [
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000", "cpu.max": "400000 100000"}),
        (
            "3:cpu,cpuacct:/a\n0::/",
            {
                "cpu/a/cpu.cfs_quota_us": "150000",
                "cpu/a/cpu.cfs_period_us": "100000",
                "cpu/cpu.cfs_quota_us": "-1",
            },
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_the_tightest_quota_of_the_control_groups_holds(
    group: str, files: dict[str, str], tmp_path: Path
) -> None:
    write_groups(tmp_path, group, files)
    assert cgroups.cpu_quota(tmp_path) == 1.5


def test_memory_left_under_a_limit_counts_files_that_can_be_dropped(tmp_path: Path) -> None:
    files = {
        "memory.max": "1000\n",
        "memory.current": "900\n",
        "memory.stat": "anon 500\ninactive_file 300\n",
    }
    write_groups(tmp_path, "0::/", files)
    assert cgroups.memory_limit(tmp_path) == (1000, 400)


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert cgroups.cpu_quota(tmp_path) is None
    assert cgroups.memory_limit(tmp_path) is None


def write_groups(root: Path, group: str, files: dict[str, str]) -> None:
    for path, text in {
        "proc/self/cgroup": group,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def test_the_error_of_a_library_that_does_not_import_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halfinstalled.py").write_text("raise RuntimeError('operator nms does not exist\\nand more')")
    (tmp_path / "halfinstalled-1.2.dist-info").mkdir()
    (tmp_path / "halfinstalled-1.2.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: halfinstalled\nVersion: 1.2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert survey.library("halfinstalled") == Library(
        "halfinstalled", "1.2", "RuntimeError: operator nms does not exist"
    )
    assert survey.library("sbpipe-no-such-library").problem == "not installed"


def test_a_broken_torch_still_gets_a_page_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch_cpu.so: cannot open shared object file')")
    command = [sys.executable, "-m", "sbpipe", "doctor"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=HANG_S, check=False, env=environment, cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    assert "libtorch_cpu.so" in done.stdout
    assert "memory " in done.stdout


def test_a_place_where_no_run_can_be_written_is_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").touch()
    assert "--run-dir" in stop(replace(HEALTHY, runs=host.runs_folder("pipelined")))
