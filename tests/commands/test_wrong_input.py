"""A mistake is told clearly, with its exit code, before training starts, and nothing is left half-written."""

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.ranked import train_ranks
from support.runs import forked, sbpipe, settings, small, train_inline, train_over_the_wire

from sbpipe.errors import ConfigError, DataError, DeviceError, ModelError, RunDirError, UserError
from sbpipe.runs.directory import RunDir
from sbpipe.trainer.step_outcome import DivergedError


def bad_npz(path: Path, **changes: np.ndarray) -> str:
    x, y = np.zeros((40, 3, 32, 32), np.uint8), np.arange(40) % 10
    np.savez(path, **({"x_train": x, "y_train": y, "x_test": x, "y_test": y} | changes))
    return str(path)


def refused(run_path: Path, kind: type[UserError], match: str, **changes: object) -> None:
    with pytest.raises(kind, match=match):
        train_inline(small(mode="inline", **changes), run_path)
    assert not run_path.exists()


def test_a_missing_data_set_says_how_to_get_it(run_path: Path, tmp_path: Path) -> None:
    refused(run_path, DataError, "download", data__name="cifar10", data__path=str(tmp_path))


def test_an_unknown_data_set_names_the_nearest(run_path: Path) -> None:
    refused(run_path, DataError, "cifar10", data__name="cifar11")


def test_an_unreadable_npz_is_named(run_path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"PK\x03\x04 not an archive")
    refused(run_path, DataError, "broken.npz", data__name="arrays", data__path=str(broken))


def test_labels_out_of_range_are_named(run_path: Path, tmp_path: Path) -> None:
    path = bad_npz(tmp_path / "a.npz", y_train=np.full(40, 12))
    refused(run_path, DataError, "12", data__name="arrays", data__path=path, data__classes=10)


def test_an_empty_data_set_is_refused(run_path: Path, tmp_path: Path) -> None:
    path = bad_npz(
        tmp_path / "a.npz", x_train=np.zeros((0, 3, 32, 32), np.uint8), y_train=np.zeros(0, np.int64)
    )
    refused(run_path, DataError, "empty", data__name="arrays", data__path=path)


def test_data_smaller_than_a_batch_is_refused(run_path: Path) -> None:
    refused(run_path, DataError, "batch", data__examples=10)


def test_a_device_that_is_not_there_lists_what_is(run_path: Path) -> None:
    refused(
        run_path,
        DeviceError,
        r"train\.device = 'cuda:7': no such device here\. This machine has cpu",
        train__device="cuda:7",
    )
    refused(run_path, DeviceError, "not a device name", train__device="gpu number one")


def greedy_model(num_classes: int, input_shape: tuple[int, ...], **_: object) -> torch.nn.Module:
    """A model that asks for a petabyte as soon as it is trained."""

    class Greedy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(input_shape[0], num_classes)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if self.training:
                torch.empty(2**50, dtype=torch.uint8)
            return self.head(inputs.mean((2, 3)))

    return Greedy()


def test_too_little_memory_is_told_before_the_run_with_the_knobs(run_path: Path) -> None:
    refused(
        run_path,
        DeviceError,
        r"out of memory with train\.batch_size = 16",
        model__name="test_wrong_input:greedy_model",
        model__options={},
    )


def test_an_unknown_model_names_the_nearest(run_path: Path) -> None:
    refused(run_path, ModelError, "resnet18_cifar", model__name="resnet18_cifr", model__options={})


def test_a_plugin_that_does_not_exist_is_named(run_path: Path) -> None:
    refused(run_path, ConfigError, "no_such_module", loss__name="no_such_module:loss")


def test_a_run_directory_in_use_is_refused_unless_told_otherwise(run_path: Path) -> None:
    train_inline(small(mode="inline", train__steps=1), run_path)
    with pytest.raises(RunDirError, match="--resume to continue the run there, --overwrite to replace it"):
        train_inline(small(mode="inline"), run_path)


@pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
def test_a_run_directory_at_work_is_refused_before_anything_starts(flag: str, run_path: Path) -> None:
    at_work = RunDir.open(run_path, resume=False, overwrite=False)
    at_work.write_config(small())
    try:
        done = forked("run", "--run-dir", str(run_path), flag)
    finally:
        at_work.close()
    assert done.returncode == 2
    assert "another trainer is working in" in done.stderr
    assert done.stdout == ""
    assert not (run_path / "logs").exists()


def test_overwrite_never_deletes_what_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    done = forked("run", "--run-dir", str(tmp_path), "--overwrite", *settings())
    assert done.returncode == 2
    assert "only replaces runs" in done.stderr
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("command", [("run",), ("run", "--mode", "inline"), ("trainer",)], ids=" ".join)
def test_a_place_that_cannot_be_written_is_a_mistake_and_no_bug(command: tuple[str, ...]) -> None:
    # Nobody can make a folder there, not even root, whom permissions do not stop.
    done = (sbpipe if command == ("run",) else forked)(
        *command, "--run-dir", "/proc/nowhere/run", *settings()
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("sbpipe: /proc/nowhere/run cannot be written")
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_told_with_the_way_out(run_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = forked("trainer", "--bind", f"tcp://127.0.0.1:{port}", "--run-dir", str(run_path), *settings())
    assert done.returncode == 2
    assert f"{port}" in done.stderr
    assert "--bind tcp://127.0.0.1:0" in done.stderr
    assert not run_path.exists()


def test_a_selector_with_a_tcp_address_and_no_key_is_refused_at_once() -> None:
    done = forked("selector", "--connect", "tcp://127.0.0.1:9")
    assert done.returncode == 2
    assert "sbpipe keys" in done.stderr


def test_a_supervised_run_that_cannot_begin_leaves_nothing_behind(run_path: Path) -> None:
    done = sbpipe(
        "run", "--run-dir", str(run_path), *settings(data__name="arrays", data__path="/nowhere.npz")
    )
    assert done.returncode == 2
    assert "nowhere.npz" in done.stderr
    assert not run_path.exists()


@pytest.mark.parametrize("connect", ["ipc://{}/link", "auto", "{}"])
def test_a_selector_without_a_trainer_gives_up_and_says_so(tmp_path: Path, connect: str) -> None:
    where = connect.format(tmp_path)
    done = forked("selector", "--connect", where, "--set", "link.wait_s=1")
    assert done.returncode == 3
    assert "no trainer" in done.stderr or "waited 1 s" in done.stderr
    assert where in done.stderr


def test_a_trainer_without_a_selector_gives_up_and_says_so(run_path: Path) -> None:
    done = forked(
        "trainer",
        "--bind",
        "tcp://127.0.0.1:0",
        "--run-dir",
        str(run_path),
        "--set",
        "link.wait_s=1.0",
        *settings(),
    )
    assert done.returncode == 3
    assert "no selector for" in done.stderr


def test_resuming_under_other_settings_is_refused_with_both_values(run_path: Path) -> None:
    train_inline(small(mode="inline", train__steps=1), run_path)
    (run_path / "summary.json").unlink()  # as if it had been cut off
    done = forked(
        "run", "--run-dir", str(run_path), "--resume", "--set", "selector.threads=1", "--set", "optim.lr=0.5"
    )
    assert done.returncode == 2
    assert "optim.lr = 0.5: the run in" in done.stderr
    assert "was started with 0.1" in done.stderr


# Rates at which the training loss goes first, and the scores: large weights that still train, in batches.
@pytest.mark.parametrize("rate", [1e30, 1e4])
@pytest.mark.parametrize("mode", ["inline", "lockstep", "fixed-lag", "pipelined", "data-parallel"])
def test_a_diverged_run_stops_with_the_same_words_in_every_mode(
    mode: str, rate: float, run_path: Path
) -> None:
    train = {"inline": train_inline, "data-parallel": train_ranks}.get(mode, train_over_the_wire)
    # What ranks raise comes as the text of their process.
    kind = AssertionError if mode == "data-parallel" else DivergedError
    with pytest.raises(
        kind, match=r"the run has diverged: (.|\n)*Lower optim\.lr, or look for what is wrong"
    ):
        train(small(mode=mode, **diverging(mode, rate)), run_path)
    assert not (run_path / "summary.json").exists()


@pytest.mark.parametrize("mode", ["inline", "pipelined", "data-parallel"])
def test_a_command_whose_run_diverged_ends_with_its_words_and_code(mode: str, run_path: Path) -> None:
    run = forked if mode == "inline" else sbpipe
    done = run("run", "--run-dir", str(run_path), *settings(mode=mode, **diverging(mode, 1e30)))
    assert done.returncode == 2
    assert "sbpipe: the run has diverged: " in done.stderr
    assert "Lower optim.lr, or look for what is wrong with the data" in done.stderr
    assert not (run_path / "summary.json").exists()


def diverging(mode: str, rate: float) -> dict[str, Any]:
    given = {"optim__lr": rate, "schedule__name": "constant", "train__steps": 0, "train__epochs": 3.0}
    return given | ({"selection__policy": "full"} if mode == "data-parallel" else {})


def test_a_run_whose_candidates_fill_no_batch_is_an_error_not_a_result(run_path: Path) -> None:
    with pytest.raises(ConfigError, match="did not fill one batch"):
        train_inline(
            small(
                mode="inline",
                selection__policy="sb",
                selection__keep=1 / 3,
                data__examples=60,
                train__steps=0,
                train__epochs=1.0,
                train__batch_size=20,
            ),
            run_path,
        )


def test_a_supervised_mistake_is_told_in_one_line(run_path: Path) -> None:
    done = forked("run", "--run-dir", str(run_path), *settings(data__name="cifar11"))
    assert done.returncode == 2
    assert done.stderr.count("sbpipe: ") == 1
    assert "logs" not in done.stderr
