"""A fact that was measured or could not be, and how large it is measured. Knows no device and no torch."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Value: TypeAlias = float | str | bool | None


class NotHere(Exception):
    """This device, or this machine, has nothing that could be measured; the text says what is missing."""


@dataclass(frozen=True)
class Fact:
    """One thing that is known now; a `value` of None is not, and `note` says why."""

    what: str
    value: Value
    unit: str = ""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For the file, which has no number that JSON has not."""
        is_number = not isinstance(self.value, float) or math.isfinite(self.value)
        value = self.value if is_number else str(self.value)
        return {"what": self.what, "value": value, "unit": self.unit, "note": self.note}


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    model: str
    options: dict[str, Any]
    batch_size: int
    examples: int
    train_steps: int
    rounds: int
    megabytes: int
    is_quick: bool = False


WHOLE = Size("resnet18_cifar", {}, 256, 4096, 200, 20, 256)
QUICK = Size("small_cnn", {"width": 8}, 32, 256, 8, 3, 4, is_quick=True)

Measure: TypeAlias = Callable[[Size], Sequence[Fact]]


def attempt(what: str, measure: Callable[[], Iterable[Fact]]) -> Sequence[Fact]:
    """The facts of one part of a check; one that fails is a fact too, and the other parts go on."""
    facts: list[Fact] = []
    try:
        facts.extend(measure())
    except NotHere as error:
        facts.append(Fact(what, None, note=f"not here: {error}"))
    except Exception as error:  # noqa: BLE001 - what fails on a device that nobody has tried is what we are after
        facts.append(Fact(what, None, note=f"failed: {reason_of(error)}"))
    return facts


def reason_of(error: BaseException) -> str:
    """An error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
