"""A fault: how it is inflicted on a running training, how it shows, and how the run must end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sbpipe.bench.faults.trial import Command, Trial

Inflict = Callable[[Trial, Command], Command]
"""Of a trial and the command that runs it; returns the command whose end counts, which is another one where a
user would have to resume.
"""


@dataclass(frozen=True)
class Fault:
    """One fault; `says` is what the user must be told, "" if nothing needs to be said."""

    name: str
    inflict: Inflict
    says: str = ""
    code: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)
    begin: Callable[[Trial], Command] = Trial.run
    around: Sequence[str] = ()
    needs_root: bool = False
    is_quick: bool = False
    """Part of the tests."""
    must_cover: bool = True
    """Whether every candidate must have been considered at the end; not if the run must end early."""
