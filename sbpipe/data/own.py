"""The user's own data sets: `module:function`, called without arguments. It must not know what they hold."""

from typing import Any

from sbpipe.config import DataConfig
from sbpipe.config.plugins import call_plugin, import_plugin
from sbpipe.data.content import Contents, data_error, names_in
from sbpipe.data.datasets import DatasetContent
from sbpipe.data.own_batches import Collate
from sbpipe.data.tree_split import Trees

_FORM = (
    "It must return (train, test), or an object with .train and .test: two map-style data sets of "
    "(input, target); or (train, test, collate), of items of any form that collate makes a batch (inputs, "
    "targets) of"
)


def read_own(data: DataConfig) -> Contents | Trees:
    """The contents of the two data sets that the user's function returns.

    With a collate function, items may be anything, and it makes the batches. Without one:

    uint8 inputs are images (CHW, HWC or PIL) and get the view of the config; float inputs stay unchanged.
    Random transforms may use the global generators of random, numpy and torch: their draws are a function of
    (seed, epoch, example_id).
    """
    returned = call_plugin("data.name", data.name, import_plugin("data.name", data.name))
    train, test, collate = _splits(returned, data.name)
    num_declared = _declared_classes(train)
    num_classes = data.classes or num_declared
    if collate is not None:
        return Trees(train, test, collate, num_classes, names_in(getattr(train, "classes", None)))
    train_content = DatasetContent(train, name="train", num_classes=num_classes, num_workers=data.workers)
    test_content = DatasetContent(test, name="test", num_classes=num_classes, num_workers=data.workers)
    target = train_content.first.target
    if not num_classes and not target.is_floating_point():
        way_out = (
            "Set data.classes to their number, or give the training data set an attribute num_classes (a "
            "number) or classes (their names)"
        )
        raise data_error("data.name", data.name, "how many classes it has is not known", way_out)
    return Contents(
        train_content,
        test_content,
        num_classes or target.numel(),
        num_declared or num_classes,
        names_in(getattr(train, "classes", None)),
    )


def _splits(returned: Any, name: str) -> tuple[Any, Any, Collate | None]:
    if isinstance(returned, (tuple, list)) and len(returned) in (2, 3):
        train, test, *collate = returned
        return train, test, collate[0] if collate else None
    if hasattr(returned, "train") and hasattr(returned, "test"):
        return returned.train, returned.test, getattr(returned, "collate", None)
    raise data_error("data.name", name, f"the function returned {type(returned).__name__}", _FORM)


def _declared_classes(dataset: Any) -> int:
    classes = getattr(dataset, "classes", ())
    return int(getattr(dataset, "num_classes", 0)) or (len(classes) if hasattr(classes, "__len__") else 0)
