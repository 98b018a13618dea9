"""The one list of data sets: name in the config to reader. It must not know how they read."""

import difflib
from collections.abc import Callable

from sbpipe.config import DataConfig
from sbpipe.config.plugins import is_plugin
from sbpipe.data import torchvision_sets
from sbpipe.data.content import Contents, data_error
from sbpipe.data.embedded import read_embedded
from sbpipe.data.image_folder import read_image_folder
from sbpipe.data.noise import with_noise
from sbpipe.data.npz import read_arrays
from sbpipe.data.own import read_own
from sbpipe.data.part import limited
from sbpipe.data.tree_split import Trees

Reader = Callable[[DataConfig], Contents]

READERS: dict[str, Reader] = {
    "embedded": read_embedded,
    **{name: torchvision_sets.reader(name) for name in torchvision_sets.KNOWN},
    "image_folder": read_image_folder,
    "arrays": read_arrays,
}


def read(data: DataConfig) -> Contents | Trees:
    """The contents of the data set that the config names; with a colon it is the user's module:function."""
    contents = read_own(data) if is_plugin(data.name) else _reader(data.name)(data)
    if isinstance(contents, Trees):
        return contents
    # In this order: label noise is a function of the example's id in the part.
    return with_noise(limited(contents, data), data)


def _reader(name: str) -> Reader:
    if name in READERS:
        return READERS[name]
    near = difflib.get_close_matches(name.lower(), READERS, n=1, cutoff=0.0)[0]
    way_out = (
        f"The nearest known name is {near!r}; the others are "
        f"{', '.join(other for other in READERS if other != near)}, or module:function"
    )
    raise data_error("data.name", name, "there is no such data set", way_out)
