"""Makes foreign text safe for a terminal or a log: control characters are escaped. Pure.

Names, devices and reasons come from peers, and words from files that others may write.
"""

import logging


def visible(text: str, *, keep: str = "") -> str:
    r"""The text with each character that is not printable, and not in `keep`, as Python writes it (\x1b)."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode()
        for letter in text
    )


class LogFormatter(logging.Formatter):
    """One line for each message, whatever it quotes, followed by the traceback, if there is one."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The message, in one line."""
        return visible(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's own name
        """The traceback, with control characters escaped."""
        return visible(super().formatException(ei), keep="\n")  # type: ignore[arg-type]
