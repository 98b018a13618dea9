"""Files are there whole or not at all."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from sbpipe.files import atomic_file, write_atomically


def test_a_written_file_replaces_the_old_one_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text("old")
    write_atomically(path, "new: é\n")
    assert path.read_bytes() == "new: é\n".encode()
    assert os.listdir(tmp_path) == ["summary.json"]


@pytest.mark.parametrize("error", [OSError("disk full"), RuntimeError("torch"), KeyboardInterrupt("stopped")])
def test_whatever_interrupts_a_write_the_old_file_stays_and_no_partial_one(
    tmp_path: Path, error: BaseException
) -> None:
    path = tmp_path / "scores.npz"
    path.write_text("old")

    def write_half() -> None:
        with atomic_file(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error), match=str(error)):
        write_half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["scores.npz"]


def test_two_writers_at_once_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "cache.npz"
    with atomic_file(path) as one, atomic_file(path, is_durable=True) as other:
        np.savez(one, allow_pickle=False, numbers=np.arange(3))
        np.savez(other, allow_pickle=False, numbers=np.arange(5))
    with np.load(path, allow_pickle=False) as archive:
        assert len(archive["numbers"]) == 3
    assert os.listdir(tmp_path) == ["cache.npz"]


def test_a_file_for_its_owner_alone_is_never_open_to_others(tmp_path: Path) -> None:
    path = tmp_path / "connection.json"
    with atomic_file(path, mode=0o600) as file:
        partial = Path(os.readlink(f"/proc/self/fd/{file.fileno()}"))
        assert stat.S_IMODE(partial.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
