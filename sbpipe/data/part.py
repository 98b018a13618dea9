"""A part of a data set (`data.limit`, `data.test_limit`), for quick runs. It must not know which data.

The part is a data set of its own: its examples are numbered from 0, and its fingerprint, score files and
wrong labels are those of the part. Which examples it has is a pure function of data.seed and the size of the
whole, so that every process draws the same.
"""

import numpy as np

from sbpipe import randomness
from sbpipe.config import DataConfig
from sbpipe.data.content import Content, Contents


def limited(contents: Contents, data: DataConfig) -> Contents:
    """The data set with at most as many examples as the settings allow."""
    return contents._replace(
        train=_part(contents.train, data.limit, randomness.key(data.seed, "data.limit")),
        test=_part(contents.test, data.test_limit, randomness.key(data.seed, "data.test_limit")),
    )


def _part(content: Content, limit: int, key: int) -> Content:
    if not limit or limit >= content.num_examples:
        return content
    draws = randomness.uniform(np.arange(content.num_examples), key)
    return content.part(np.sort(np.argsort(draws, kind="stable")[:limit]))
