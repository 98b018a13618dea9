"""The user's own data sets: `module:function`, called without arguments. It must not know what they hold."""

import importlib
import os
import sys
from typing import Any

from sbpipe.config import DataConfig
from sbpipe.data.content import Contents, data_error
from sbpipe.data.datasets import DatasetContent

_FORM = (
    "It must return (train, test), or an object with .train and .test: two map-style data sets of "
    "(input, target)"
)


def read_own(data: DataConfig) -> Contents:
    """The contents of the two data sets that the user's function returns.

    uint8 inputs are images (CHW, HWC or PIL) and get the view of the config; float inputs pass through as
    they are. Random transforms may use the global generators of random, numpy and torch: what they draw is a
    function of (seed, epoch, example_id).
    """
    train, test = _splits(_function(data.name)(), data.name)
    num_declared = _declared_classes(train)
    num_classes = data.classes or num_declared
    train_content = DatasetContent(train, name="train", num_classes=num_classes, num_workers=data.workers)
    test_content = DatasetContent(test, name="test", num_classes=num_classes, num_workers=data.workers)
    target = train_content.first.target
    if not num_classes and not target.is_floating_point():
        way_out = "Set data.classes, or give the training data set an attribute num_classes"
        raise data_error("data.name", data.name, "how many classes it has is not known", way_out)
    return Contents(train_content, test_content, num_classes or target.numel(), num_declared or num_classes)


def _function(name: str) -> Any:
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise data_error(
            "data.name",
            name,
            "is not of the form module:function",
            "For instance data.name='mydata:load' for load() of mydata.py",
        )
    if os.getcwd() not in sys.path:
        # An installed command does not look for modules where it is called; at the end, so that nothing is
        # hidden.
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            way_out = "Check the spelling, or start sbpipe in the folder of the file, or set PYTHONPATH"
            raise data_error("data.name", name, f"there is no module {module_name!r}", way_out) from None
        raise data_error(
            "data.name",
            name,
            f"module {module_name!r} needs {error.name!r}, which is missing",
            f"Install {error.name}",
        ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise data_error(
            "data.name", name, f"module {module_name!r} has no function {function_name!r}", _FORM
        )
    return function


def _splits(returned: Any, name: str) -> tuple[Any, Any]:
    if isinstance(returned, (tuple, list)) and len(returned) == 2:
        return returned[0], returned[1]
    if hasattr(returned, "train") and hasattr(returned, "test"):
        return returned.train, returned.test
    raise data_error("data.name", name, f"the function returned {type(returned).__name__}", _FORM)


def _declared_classes(dataset: Any) -> int:
    classes = getattr(dataset, "classes", ())
    return int(getattr(dataset, "num_classes", 0)) or (len(classes) if hasattr(classes, "__len__") else 0)
