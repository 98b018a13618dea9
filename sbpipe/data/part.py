"""Parts of a data set (`data.limit`, `data.test_limit`, `data.validation`). It must not know which data.

The part is its own data set: its examples are numbered from 0, and fingerprint, score files and wrong labels
belong to the part. Its examples are a pure function of data.seed and the size of the whole, so that every
process draws the same ones.
"""

import numpy as np

from sbpipe import randomness
from sbpipe.config import DataConfig
from sbpipe.data.content import Content, Contents, data_error
from sbpipe.data.order import Order

_LISTED = 2**26
"""Up to so many examples, each gets its own draw, which takes half a gigabyte. A part of more examples is the
beginning of a shuffled order, which is never in memory as a whole.
"""


def limited(contents: Contents, data: DataConfig) -> Contents:
    """The data set with at most as many examples as the settings allow."""
    contents = held_out(contents, data)
    return contents._replace(
        train=_part(contents.train, data.limit, randomness.key(data.seed, "data.limit")),
        test=_part(contents.test, data.test_limit, randomness.key(data.seed, "data.test_limit")),
    )


def held_out(contents: Contents, data: DataConfig) -> Contents:
    """The data set with held-out training examples in place of its test set, if the settings ask for it."""
    if not data.validation:
        return contents
    given, whole = data.validation, contents.train.num_examples
    number = round(given * whole) if given < 1.0 else round(given)
    if not 0 < number < whole:
        reason = f"holds out {number} of {whole} training examples"
        raise data_error(
            "data.validation", given, reason, "Choose a share or a number that leaves some on both sides"
        )
    draws = randomness.uniform(np.arange(whole), randomness.key(data.seed, "data.validation"))
    order = np.argsort(draws, kind="stable")
    return contents._replace(
        train=contents.train.part(np.sort(order[number:])), test=contents.train.part(np.sort(order[:number]))
    )


def _part(content: Content, limit: int, key: int) -> Content:
    if not limit or limit >= content.num_examples:
        return content
    if content.num_examples > _LISTED:
        return content.part(np.sort(Order(content.num_examples, key).ids(0, 0, limit)))
    draws = randomness.uniform(np.arange(content.num_examples), key)
    return content.part(np.sort(np.argsort(draws, kind="stable")[:limit]))
