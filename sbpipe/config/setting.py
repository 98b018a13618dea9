"""What a setting is: a dataclass field with its default, its limits and its one-line meaning."""

from dataclasses import field
from typing import Any

OWN = "own"
"""The name of data, model and loss in a user's own loop, which brings them as objects."""

# Far beyond any real run, and far below what memory, threads or arithmetic can take.
MOST_EXAMPLES = 10**9
MOST_STEPS = 10**9
MOST_EPOCHS = 10**6
MOST_SECONDS = 1e8
MOST_THREADS = 1024
MOST_SEEDS = 2**63 - 1


OWN_CODE, OWN_FILES = "the trainer's code", "the trainer's files"
"""The reach of settings that only the trainer uses."""


def setting(
    default: Any,
    meaning: str,
    *,
    choices: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    reaches: str = "",
) -> Any:
    """A dataclass field with its meaning and limits (`above` excluded); `words` may stand for a number.

    `reaches` says what a text can lead out to: "code" (`module:function`) or "files". A selector follows such
    a text only where its own user wrote it; those of OWN_CODE and OWN_FILES it never looks at.
    """
    metadata = {
        "meaning": meaning,
        "choices": choices,
        "words": words,
        "low": low,
        "high": high,
        "above": above,
        "reaches": reaches,
    }
    # Each config gets its own list or table: a change of a shared default would affect all.
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)
