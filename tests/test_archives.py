"""Arrays out of files: what was saved is read, and what claims to be more than it is takes no memory."""

import io
import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sbpipe
from sbpipe import archives
from sbpipe.archives import BadArchive, read_npz
from sbpipe.config import resolve
from sbpipe.data import score_file
from sbpipe.data.npz import read_arrays
from sbpipe.errors import ConfigError, DataError


def npy(shape: str, descr: str = "'|u1'", data: bytes = b"") -> bytes:
    """An array file whose header says anything."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def archive(path: Path, *members: tuple[str, bytes], packed: bool = False) -> Path:
    kind = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, content in members:
            file.writestr(f"{name}.npy", content)
    return path


def objects() -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([{"a": 1}], object), allow_pickle=True)
    return out.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.int32).reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(6, dtype=">f4"),
        np.array("text: é"),
        np.array(""),
        np.empty((0, 3), np.uint8),
        np.float32(3.5),
        np.zeros(3_000_000, np.uint8),
    ],
    ids=str,
)
def test_what_was_saved_is_read(tmp_path: Path, save: Any, array: np.ndarray[Any, Any]) -> None:
    save(tmp_path / "a.npz", x=array, y=np.arange(3), allow_pickle=False)
    found = read_npz(tmp_path / "a.npz", ("x",))["x"]
    np.testing.assert_array_equal(found, array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.flags.writeable


HOSTILE: dict[str, tuple[bytes, str]] = {
    "claims 10^12 rows": (npy("(1000000000000, 3072)", data=b"abc"), "shape .1000000000000, 3072., and"),
    "claims rows beyond 2^64": (npy("(99999999999999999999, 9)"), "claims to be uint8 of shape"),
    "claims fewer than there are": (npy("(2,)", data=b"abc"), "claims to be"),
    "negative rows": (npy("(-1, 3)", data=b"abc"), "claims to be"),
    "rows that are no numbers": (npy("('a',)"), "shape"),
    "shape that is none": (npy("7"), "shape|header"),
    "a thousand axes": (npy("(" + "1, " * 1000 + ")", data=b"a"), "claims to be|header"),
    "pickled objects": (objects(), "x holds pickled objects, which are never read"),
    "objects within": (npy("(1,)", "[('a', '|O')]", b"x" * 8), "pickled objects"),
    "header that is no header": (b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16, "header|EOF|token"),
    "header that runs code": (npy("__import__('os').getpid()"), "malformed|header"),
    "unknown version": (b"\x93NUMPY\x09\x00", "not known here|version"),
    "no array": (b"hello", "magic|EOF|hello"),
    "nothing": (b"", "EOF|end|magic"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", HOSTILE)
def test_an_array_that_lies_is_refused_in_one_line(tmp_path: Path, name: str, packed: bool) -> None:
    content, reason = HOSTILE[name]
    with pytest.raises(BadArchive, match=f"(?i){reason}") as caught:
        read_npz(archive(tmp_path / "a.npz", ("x", content), packed=packed), ("x",))
    assert "\n" not in str(caught.value)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "FREE_BYTES", 1 << 20)
    path = archive(tmp_path / "a.npz", ("x", npy("(4194304,)", data=bytes(4 << 20))), packed=True)
    with pytest.raises(
        BadArchive, match=r"a file of 4,\d\d\d bytes that would unpack to 4,194,\d+; at most 100"
    ):
        read_npz(path, ("x",))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", ("x", npy("(1,)", data=b"a")), ("x", npy("(1,)", data=b"b")))
    with pytest.raises(BadArchive, match="2 members, of which 1 are there twice"):
        read_npz(path, ("x",))


def test_a_file_cut_or_damaged_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.arange(64), y=np.arange(5), allow_pickle=False)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), 3):
            damaged[at] = rng.integers(0, 256)
        path.write_bytes(bytes(damaged if rng.random() < 0.7 else damaged[: rng.integers(0, len(whole))]))
        try:
            found = read_npz(path, ("x", "y"))
        except (BadArchive, KeyError):
            continue
        # Damage outside of what is read: then what is read is what was saved.
        np.testing.assert_array_equal(found["x"], np.arange(64))


def test_a_pipe_or_a_device_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(BadArchive, match="not an ordinary file"):
            read_npz(path, ("x",))


# --- where such files are read --------------------------------------------------------------------


def test_hostile_data_ends_in_a_line_that_names_the_setting(tmp_path: Path) -> None:
    members = [(name, HOSTILE["claims 10^12 rows"][0]) for name in ("x_train", "y_train", "x_test", "y_test")]
    path = archive(tmp_path / "a.npz", *members)
    with pytest.raises(
        DataError, match=r"data.path = '.*a.npz': the file is unreadable .*Write the file again"
    ):
        read_arrays(resolve({"data.name": "arrays", "data.path": str(path)}).data)


@pytest.mark.parametrize(
    ("scores", "about"),
    [
        (HOSTILE["claims 10^12 rows"][0], npy("(1,)", data=b"a")),
        (objects(), npy("(1,)", data=b"a")),
        (npy("(1,)", "'<f4'", b"abcd"), npy("()", "'<U4'", "null".encode("utf-32-le"))),
        (npy("(1,)", "'<f4'", b"abcd"), npy("()", f"'<U{9000}'", ("[" * 9000).encode("utf-32-le"))),
        (npy("(1,)", "'<f4'", b"abcd"), objects()),
    ],
    ids=["rows", "objects", "null", "nesting", "about"],
)
def test_a_hostile_score_file_ends_in_a_line_that_names_the_setting(
    tmp_path: Path, scores: bytes, about: bytes
) -> None:
    path = archive(tmp_path / "a.npz", ("scores", scores), ("about", about))
    with pytest.raises(
        ConfigError, match=r"data.prune = .*is not a score file, or not a whole one"
    ) as caught:
        score_file.read_scores(path, key="data.prune")
    assert "\n" not in str(caught.value)


OWN_PICKLES = {"data/trees.py", "data/own_batches.py", "selector/job.py"}
"""What a process's own children send it through their pipe, and job files that are this user's alone."""


def test_nothing_in_the_product_can_unpickle_what_others_wrote() -> None:
    root = Path(sbpipe.__file__).parent
    for path in root.rglob("*.py"):
        text, name = path.read_text(), str(path.relative_to(root))
        assert ("import pickle" in text or "import cloudpickle" in text) == (name in OWN_PICKLES), path
        # The program that goes with an export reads what its own user gives it.
        is_checked = "allow_pickle=False" in text if name == "export/load.py" else "np.load(" not in text
        assert is_checked, f"{path}: read_npz checks sizes"
        assert "allow_pickle=True" not in text, path
        assert text.count("torch.load(") <= text.count("weights_only=True"), path
        assert not any(word in text for word in ("marshal", "shelve", "jsonpickle", "yaml.load")), path
