"""Models of torchvision by name: image and video classifiers, untrained. The one file here to import it.

The import is inside a function: it takes a second that our own models need not wait for. It must not know how
weights are seeded.
"""

import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

from torch import nn

# Their auxiliary heads would answer with a tuple while training, and leaving init_weights out makes
# torchvision warn.
_DEFAULTS: dict[str, dict[str, Any]] = {
    name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")
}
# Options that torchvision's functions take beside those of the class.
_MORE_OPTIONS = {
    name: {"width_mult", "reduced_tail", "dilated"} for name in ("mobilenet_v3_large", "mobilenet_v3_small")
}


def torchvision_names() -> list[str]:
    """Every classifier of the installed torchvision; detection and segmentation have other outputs."""
    models = _zoo()
    return [*models.list_models(module=models), *models.list_models(module=models.video)]


def torchvision_options(name: str) -> set[str]:
    """The options of a model: what the class that its function returns takes.

    Some of these classes swallow unknown keywords, so that a misspelt option would have no effect; hence we
    ask before we build.
    """
    built_class = get_type_hints(_zoo().get_model_builder(name))["return"]
    parameters = inspect.signature(built_class).parameters.values()
    named = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
    return (named | _MORE_OPTIONS.get(name, set())) - {"num_classes"}


def build_torchvision(name: str, num_classes: int, options: Mapping[str, Any]) -> nn.Module:
    """A model with fresh weights."""
    model: nn.Module = _zoo().get_model(
        name, weights=None, num_classes=num_classes, **{**_DEFAULTS.get(name, {}), **options}
    )
    return model


def _zoo() -> Any:
    from torchvision import models  # type: ignore[import-untyped]

    return models
