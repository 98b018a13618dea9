"""Commands out of files that others run (job scripts, manifests, pages), fed to our own parser."""

import argparse
import re
import shlex

from sbpipe.cli import build_parser
from sbpipe.config import parse_assignment, resolve

_COMMAND = re.compile(
    r"(?:^|[\s(;|`'\"])((?:sbpipe|-m sbpipe) (?:trainer|selector|run|keys|doctor|watch|report)\b[^\n`;|&)#]*)"
)


def parse_command(words: list[str]) -> argparse.Namespace:
    """What our parser makes of `sbpipe ...`; settings are resolved, so a wrong key or value is an error."""
    args = build_parser().parse_args(words[1:])
    if assignments := getattr(args, "assignments", []):
        resolve(dict(parse_assignment(each) for each in assignments))
    return args


def flags_of(text: str) -> list[argparse.Namespace]:
    """Every `sbpipe` command of a text, parsed; variables of a shell stand for themselves."""
    joined = text.replace("\\\n", " ")
    return [parse_command(_words(command)) for command in _COMMAND.findall(joined)]


def _words(command: str) -> list[str]:
    # Of a command that stands in quotes only the closing one was found with it.
    is_cut = command.count('"') % 2 == 1
    words = shlex.split(command.rstrip().removesuffix('"') if is_cut else command)
    words = words[1:] if words[0] == "-m" else words
    # Lists of a shell hold further words, which are other commands' or the user's.
    return [word for word in words if not re.fullmatch(r"\$\{\w+\[@\]\}|\$@|\$resume|\.\.\.", word)]
