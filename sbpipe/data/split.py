"""A data set on a device: its splits, each with a source and a view. It must not know its users."""

import warnings
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sbpipe.config import DataConfig, ViewConfig
from sbpipe.data import catalog
from sbpipe.data.content import ChannelStats, Contents, Source, data_error, fingerprint
from sbpipe.data.prune import num_remaining, pruned_fingerprint, pruned_ids
from sbpipe.data.score_file import check_scores, read_scores
from sbpipe.data.tree_split import Trees, TreeSplit, splits_of
from sbpipe.data.views import ImageView, PlainView, View, check_view, normalisation
from sbpipe.errors import DataError
from sbpipe.records import Floats, Ids


class Batch(NamedTuple):
    """Some examples on the device."""

    inputs: torch.Tensor
    targets: torch.Tensor


class Split:
    """One split on a device. Images get a view per (seed, epoch, example_id); other inputs stay unchanged.

    In a pruned data set the examples `left` have new ids 0, 1, ..., but look as they do in the whole.
    """

    def __init__(self, source: Source, view: View, left: Ids | None = None) -> None:
        self._source = source
        self._view = view
        self._left = left

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return self._source.num_examples if self._left is None else len(self._left)

    @property
    def num_in_whole(self) -> int:
        """How many examples there are before pruning."""
        return self._source.num_examples

    def batch(self, example_ids: NDArray[np.int64], epochs: int | NDArray[np.int64]) -> Batch:
        """The examples of these ids, in this order, as in the epoch, or each in its own epoch of an array."""
        # A copy, because torch takes no reversed or read-only arrays.
        example_ids = np.array(example_ids, np.int64)
        if example_ids.size and not (example_ids.min() >= 0 and example_ids.max() < self.num_examples):
            raise IndexError(
                f"example ids must be 0 to {self.num_examples - 1}, got {example_ids.min()} to "
                f"{example_ids.max()}"
            )
        example_ids = self._in_whole(example_ids)
        epoch_of_each = np.broadcast_to(np.asarray(epochs, np.int64), example_ids.shape)
        fetched = self._source.fetch(example_ids, epoch_of_each)
        return Batch(*self._view(fetched, example_ids, epoch_of_each))

    def targets_of(self, example_ids: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The classes of these examples; None if they are unknown without loading."""
        return self._source.labels_of(self._in_whole(example_ids))

    @property
    def classes(self) -> NDArray[np.int64] | None:
        """The classes of all examples, if they are known without loading. It makes no list of all ids."""
        labels = self._source.labels
        return labels if labels is None or self._left is None else labels[self._left]

    def close(self) -> None:
        """Stop the loader's worker processes, if there are any."""
        self._source.close()

    def _in_whole(self, example_ids: Ids) -> Ids:
        return example_ids if self._left is None else self._left[example_ids]


class Data(NamedTuple):
    """A data set on a device: splits for training, scoring (the same examples, perhaps clean) and testing.

    If it is pruned, `left` are its training examples' ids in the whole, whose fingerprint is `whole`. To use
    the model elsewhere one needs `normalisation` (None = inputs stay unchanged), and perhaps `class_names`.
    """

    train: Split | TreeSplit
    score: Split | TreeSplit
    test: Split | TreeSplit
    num_classes: int
    input_shape: tuple[int, ...]
    fingerprint: str
    whole: str
    left: Ids | None = None
    normalisation: ChannelStats | None = None
    class_names: tuple[str, ...] = ()
    input_dtype: torch.dtype = torch.float32

    @property
    def has_trees(self) -> bool:
        """Whether the user's collate function makes the batches: then inputs have no common shape."""
        return isinstance(self.train, TreeSplit)

    def refuse_trees(self, command: str) -> None:
        """Refuse such data in commands that index tensors themselves."""
        if self.has_trees:
            raise DataError(
                f"{command}: this data set has a collate function of its own, and {command} needs examples "
                "of (input, target) in tensors of one shape. Train it with `sbpipe run` or sbpipe.select"
            )

    def scores_in(self, given: str, *, key: str, kind: str) -> Floats:
        """The scores of these training examples in a file of the whole data set, named by setting `key`."""
        file = read_scores(given, key=key, kind=kind)
        check_scores(file, given, key=key, fingerprint=self.whole, num_examples=self.train.num_in_whole)
        return file.scores if self.left is None else file.scores[self.left]

    def close(self) -> None:
        """End the loader processes, if there are any."""
        for split in (self.train, self.score, self.test):
            split.close()


def load_data(
    data: DataConfig, view: ViewConfig, *, seed: int, device: torch.device, batch_size: int = 1
) -> Data:
    """Read the data set, check it, and put it on the device; `seed` decides the views."""
    contents = catalog.read(data)
    if isinstance(contents, Trees):
        train, test = splits_of(contents, data, seed=seed, device=device, batch_size=batch_size)
        whole = f"{train.digest()}{test.digest()}"
        return Data(
            train, train, test, contents.num_classes, (), whole, whole, class_names=contents.class_names
        )
    check_contents(contents, data, batch_size)
    whole = fingerprint(contents)
    left = pruned_ids(
        data, fingerprint=whole, num_examples=contents.train.num_examples, batch_size=batch_size
    )
    stats = contents.train.channel_stats() if contents.train.is_image else None
    splits = (
        _place_others(contents, left, view, seed, device)
        if stats is None
        else _place_images(contents, left, view, stats, seed, device)
    )
    return Data(
        *splits,
        contents.num_classes,
        contents.train.input_shape,
        pruned_fingerprint(whole, left),
        whole,
        left,
        None if stats is None else normalisation(view, stats),
        contents.class_names,
        contents.train.input_dtype if stats is None else torch.float32,
    )


def count_examples(data: DataConfig) -> int:
    """How many training examples a run has, those left by pruning. Reads no score file."""
    contents = catalog.read(data)
    if isinstance(contents, Trees):
        return len(contents.train)
    whole = contents.train.num_examples
    return num_remaining(whole, data.prune_share) if data.prune else whole


def check_contents(contents: Contents, data: DataConfig, batch_size: int) -> None:
    """Refuse a data set whose splits do not fit each other or the batch size."""
    train, test = contents.train, contents.test
    for what, of_train, of_test in (
        ("inputs of shape", train.input_shape, test.input_shape),
        ("uint8 images", train.is_image, test.is_image),
    ):
        if of_train != of_test:
            reason = f"training examples have {what} {of_train}, test examples {of_test}"
            raise data_error("data.name", data.name, reason, "Prepare both splits alike")
    if train.num_examples < batch_size:
        reason = f"its {train.num_examples} training examples do not fill a batch of {batch_size}"
        raise data_error(
            "data.name",
            data.name,
            reason,
            f"Set train.batch_size to at most {train.num_examples}, or use more data",
        )


def _place_images(
    contents: Contents,
    left: Ids | None,
    view: ViewConfig,
    stats: ChannelStats,
    seed: int,
    device: torch.device,
) -> tuple[Split, Split, Split]:
    shape = contents.train.input_shape
    check_view(view, shape)

    def split(source: Source, margin: int, is_clean: bool, left: Ids | None = None) -> Split:
        return Split(
            source, ImageView(view, shape, stats, device, margin=margin, seed=seed, is_clean=is_clean), left
        )

    source = contents.train.place(device, margin=view.crop, seed=seed)
    train = split(source, view.crop, False, left)
    score = split(source, view.crop, True, left) if view.score == "clean" else train
    return train, score, split(contents.test.place(device, margin=0, seed=seed), 0, is_clean=True)


def _place_others(
    contents: Contents, left: Ids | None, view: ViewConfig, seed: int, device: torch.device
) -> tuple[Split, Split, Split]:
    if unused := [name for name in ("crop", "flip", "cutout") if getattr(view, name)]:
        warnings.warn(
            f"view.{', view.'.join(unused)}: no effect, because the inputs are not uint8 images", stacklevel=3
        )
    train = Split(contents.train.place(device, margin=0, seed=seed), PlainView(device), left)
    return train, train, Split(contents.test.place(device, margin=0, seed=seed), PlainView(device))
