"""The data set `arrays`: one .npz file of x_train, y_train, x_test and y_test. It must not know their use."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from sbpipe.archives import BadArchive, read_npz
from sbpipe.config import DataConfig
from sbpipe.data.arrays import array_content
from sbpipe.data.content import Contents, data_error
from sbpipe.errors import DataError

KEYS = ("x_train", "y_train", "x_test", "y_test")
NAMES = "classes"
"""The array of class names, which is optional."""


def read_arrays(data: DataConfig) -> Contents:
    """The contents of the file `data.path`."""
    if not data.path:
        raise data_error(
            "data.path",
            data.path,
            "the data set 'arrays' is one file",
            f"Set data.path to an .npz file of {', '.join(KEYS)}",
        )
    path = Path(data.path).expanduser()
    if not path.is_file():
        raise data_error(
            "data.path",
            data.path,
            "there is no such file",
            f"Make it with numpy.savez(path, {', '.join(f'{key}=...' for key in KEYS)})",
        )
    arrays = _read(path, data.path)
    try:
        train = array_content(arrays["x_train"], arrays["y_train"], name="train", num_classes=data.classes)
        test = array_content(arrays["x_test"], arrays["y_test"], name="test", num_classes=data.classes)
    except DataError as error:
        raise DataError(f"data.path = {data.path!r}: {error}") from None
    num_labelled = 1 + max(int(content.labels.max()) for content in (train, test))
    return Contents(train, test, data.classes or num_labelled, num_labelled, _class_names(path))


def _class_names(path: Path) -> tuple[str, ...]:
    found = read_npz(path, (NAMES,), is_any=True).get(NAMES)
    return () if found is None or found.ndim != 1 or found.dtype.kind != "U" else tuple(found.tolist())


def _read(path: Path, given: str) -> dict[str, NDArray[Any]]:
    way_out = f"Write the file again with numpy.savez (arrays {', '.join(KEYS)}, none of dtype object)"
    try:
        return read_npz(path, KEYS)
    except KeyError as error:
        raise data_error("data.path", given, f"the array {error.args[0]} is missing", way_out) from None
    except (BadArchive, OSError) as error:
        raise data_error(
            "data.path", given, f"the file is unreadable or cut short ({error})", way_out
        ) from None
