"""Checkpoints: every byte counts, a damaged one gives way to the one before, a failed one is tried again."""

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sbpipe import files
from sbpipe.errors import RunDirError
from sbpipe.trainer import checkpoint as module
from sbpipe.trainer import checkpoint_file
from sbpipe.trainer.checkpoint import Checkpoints


def state(number: float) -> dict[str, Any]:
    return {"model": {"w": torch.full((4,), number)}, "scores": np.arange(3), "engine": {"order": [1, 2]}}


def saved(folder: Path, *steps: int, keep: int = 9) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep)
    for step in steps:
        checkpoints.save(step, state(step))
        checkpoints.wait()
        assert checkpoints.last_error == ""
    return checkpoints


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    loaded = saved(tmp_path / "c", 5).load_newest()
    assert loaded is not None
    assert loaded["step"] == 5
    assert torch.equal(loaded["model"]["w"], torch.full((4,), 5.0))
    assert loaded["scores"].tolist() == [0, 1, 2]


def test_torch_reads_a_checkpoint_too(tmp_path: Path) -> None:
    saved(tmp_path / "c", 5)
    assert torch.load(tmp_path / "c" / "step-5.pt", weights_only=True)["step"] == 5


def test_one_flipped_bit_anywhere_is_found(tmp_path: Path) -> None:
    saved(tmp_path / "c", 5)
    path = tmp_path / "c" / "step-5.pt"
    for place in range(0, path.stat().st_size, 7):
        flip(path, place)
        with pytest.raises(checkpoint_file.Damaged, match=r"digest|format"):
            checkpoint_file.read(path)
        flip(path, place)
    assert checkpoint_file.read(path)["step"] == 5


def damage(path: Path, kind: str) -> None:
    content = path.read_bytes()
    path.unlink()
    if kind == "cut short":
        path.write_bytes(content[:-1])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "unreadable":
        path.mkdir()
    elif kind == "of another version":
        path.write_bytes(content.replace(b"checkpoint    5", b"checkpoint    6"))
    elif kind == "not ours":
        path.write_bytes(os.urandom(5000))
    elif kind == "of a dangling link":
        path.symlink_to("nowhere")


@pytest.mark.parametrize(
    "kind", ["cut short", "empty", "unreadable", "of another version", "not ours", "of a dangling link"]
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before_it_in_one_line(tmp_path: Path, kind: str) -> None:
    saved(tmp_path / "c", 5, 10)
    damage(tmp_path / "c" / "step-10.pt", kind)
    said: list[str] = []
    loaded = Checkpoints(tmp_path / "c", warn=said.append).load_newest()
    assert loaded is not None
    assert loaded["step"] == 5
    (line,) = said
    assert "step-10.pt" in line
    assert line.endswith("going on from the one before it, of step 5")
    assert "\n" not in line


def test_a_file_that_holds_a_program_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "was run"),)

    (tmp_path / "c").mkdir()
    checkpoint_file.write(tmp_path / "c" / "step-3.pt", 3, {"model": Evil()}, lambda: None)
    with pytest.raises(RunDirError, match="no checkpoint in"):
        Checkpoints(tmp_path / "c").load_newest()
    assert not (tmp_path / "was run").exists()


def test_if_all_are_damaged_each_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    saved(tmp_path / "c", 5, 10)
    flip(tmp_path / "c" / "step-5.pt", 100)
    damage(tmp_path / "c" / "step-10.pt", "cut short")
    with pytest.raises(
        RunDirError, match=r"(?s)step-10\.pt: its last line.*step-5\.pt: its digest.*--overwrite"
    ):
        Checkpoints(tmp_path / "c").load_newest()


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "c").load_newest() is None


def test_the_newest_are_kept_and_what_a_resume_left_behind_goes(tmp_path: Path) -> None:
    saved(tmp_path / "c", 5, 10, 15, 20)
    flip(tmp_path / "c" / "step-20.pt", 100)
    saved(tmp_path / "c", 17, keep=2)  # resumed from 15
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["step-15.pt", "step-17.pt"]


def test_a_new_name_is_on_disk_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def watched(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    monkeypatch.setattr(files.os, "fsync", watched)
    saved(tmp_path / "c", 5)
    assert synced[0] == tmp_path.name
    assert synced[1].startswith(".step-5.pt")
    assert synced[2] == "c"


def test_a_failed_checkpoint_is_due_again_soon_and_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    said: list[str] = []
    checkpoints = Checkpoints(tmp_path / "c", warn=said.append)
    (tmp_path / "c").write_text("a file where the folder should be")
    assert not checkpoints.is_due_again
    waits = []
    for step in range(8):
        checkpoints.save(step, state(step))
        checkpoints.wait()
        assert "Not a directory" in checkpoints.last_error
        waits.append(next(s for s in range(100) if _due_at(checkpoints, monkeypatch, now + s)))
        now += waits[-1]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert checkpoints.num_failed == len(said) == 8
    (tmp_path / "c").unlink()
    checkpoints.save(9, state(9))
    checkpoints.wait()
    assert "work again" in said[-1]
    assert not checkpoints.is_due_again


def _due_at(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, now: float) -> bool:
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    return checkpoints.is_due_again


def test_without_a_file_descriptor_left_a_checkpoint_fails_and_nothing_else(tmp_path: Path) -> None:
    told: list[str] = []
    checkpoints = Checkpoints(tmp_path / "checkpoints", warn=told.append)
    assert checkpoints.save_now(1, {"model": {}}) == ""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (tmp_path / "next").open("w") as next_file:
        number = next_file.fileno()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))
        checkpoints.save(2, {"model": {}})
        checkpoints.wait()
        checkpoints._tidy(2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "Too many open files" in told[0]
    assert checkpoints.save_now(3, {"model": {}}) == ""
