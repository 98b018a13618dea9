"""The embedded data set: coloured digits drawn by rule, 32 x 32 RGB, ten classes, no download.

Most examples are easy and much alike. A tail of them is small, crooked, faint, blurred, crossed out or
crowded by other digits, so that selection has something to gain. Example i depends only on (data.seed, split,
i), not on the number of examples or the machine. It must not know how the examples are viewed or selected.
"""

import numpy as np

from sbpipe.config import DataConfig
from sbpipe.data.arrays import ArrayContent
from sbpipe.data.cache import Arrays, cached_arrays
from sbpipe.data.content import Contents, check_labels
from sbpipe.data.glyphs import NUM_DIGITS
from sbpipe.data.painter import SIDE, Painter

# Part of the cache file's name: raise it when what is drawn changes.
_FORMAT = 2
# Painted again and compared with a cache file, in case the format was not raised.
_NUM_PROBES = 64
# Drawn at once: so few that their planes of pixels fit a core's cache.
_AT_ONCE = 128


def read_embedded(data: DataConfig) -> Contents:
    """Both splits, drawn or from the cache."""
    train, test = (
        _split(name, number, data.seed)
        for name, number in (("train", data.examples), ("test", data.test_examples))
    )
    num_classes = data.classes or NUM_DIGITS
    check_labels(train.labels, num_classes, "y_train")
    return Contents(train, test, num_classes, NUM_DIGITS, tuple(map(str, range(NUM_DIGITS))))


def draw(split: str, num_examples: int, seed: int) -> Arrays:
    """The images (uint8, axes NCHW) and labels of the first `num_examples` of a split's endless stream."""
    images = np.empty((num_examples, 3, SIDE, SIDE), np.uint8)
    labels = np.empty(num_examples, np.int64)
    painter = Painter(seed, split)
    for start in range(0, num_examples, _AT_ONCE):
        some = slice(start, min(start + _AT_ONCE, num_examples))
        images[some], labels[some] = painter.paint(np.arange(some.start, some.stop))
    return {"images": images, "labels": labels}


def _split(name: str, num_examples: int, seed: int) -> ArrayContent:
    def fits(arrays: Arrays) -> bool:
        probes = draw(name, min(_NUM_PROBES, num_examples), seed)
        return all(
            arrays[key].dtype == probe.dtype
            and arrays[key].shape == (num_examples, *probe.shape[1:])
            and np.array_equal(arrays[key][: len(probe)], probe)
            for key, probe in probes.items()
        )

    file_name = f"embedded-v{_FORMAT}-{name}-{num_examples}-seed{seed}.npz"
    arrays = cached_arrays(file_name, lambda: draw(name, num_examples, seed), fits, ("images", "labels"))
    return ArrayContent(arrays["images"], arrays["labels"])
