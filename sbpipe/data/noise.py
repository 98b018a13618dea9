"""Wrong labels on purpose (`data.label_noise`), for any data set with classes. It must not know which.

Only training labels change. Whether and how one changes is a pure function of (data.seed, example_id), so
that both roles, `sbpipe score` and pruning see the same labels. The data set's fingerprint changes with them.
"""

from dataclasses import dataclass

import numpy as np

from sbpipe import randomness
from sbpipe.config import DataConfig
from sbpipe.data.content import Contents
from sbpipe.errors import ConfigError
from sbpipe.records import Ids


@dataclass(frozen=True)
class LabelNoise:
    """With probability `share`, replaces a label by one of the other classes, all equally likely."""

    share: float
    seed: int
    num_classes: int

    def __call__(self, labels: Ids, example_ids: Ids) -> Ids:
        """The labels of these examples, some of them wrong."""
        # The names of the two draws must stay: other names would make other labels and fingerprints.
        is_wrong = (
            randomness.uniform(example_ids, randomness.key(self.seed, "embedded.label_noise")) < self.share
        )
        # Shifted by at least one class, so that a wrong label is never the right one.
        further = 1 + randomness.below(
            example_ids, randomness.key(self.seed, "embedded.wrong_label"), self.num_classes - 1
        )
        return np.where(is_wrong, (labels + further) % self.num_classes, labels)


def with_noise(contents: Contents, data: DataConfig) -> Contents:
    """The data set with the share of wrong training labels that the settings ask for."""
    if not data.label_noise:
        return contents
    if not contents.train.has_classes:
        reason = (
            f"the targets of data set {data.name!r} are not one class number per example, so none can "
            "be another class"
        )
        raise ConfigError(
            "data.label_noise", data.label_noise, reason, "Set it to 0, or give every example a class number"
        )
    num_classes = min(contents.num_labelled, contents.num_classes)
    if num_classes < 2:
        reason = f"data set {data.name!r} has one class only, so there is no other to take"
        raise ConfigError(
            "data.label_noise", data.label_noise, reason, "Set it to 0, or use data of two classes or more"
        )
    noise = LabelNoise(data.label_noise, data.seed, num_classes)
    return contents._replace(train=contents.train.relabelled(noise))
