"""Every setting is read by somebody: a key that is only checked, and never used, is dead.

A reading of `section.key` is an attribute access on the section itself, or on a name of the same file that
was given it: `own = config.selector`, or an argument of its type.
"""

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

import sbpipe
from sbpipe.config import known_keys
from sbpipe.config.schema import SECTIONS

ROOT = Path(sbpipe.__file__).parent
# Rules between settings read them to check them, which is no use.
USERS = [
    path for path in ROOT.rglob("*.py") if path not in (ROOT / "config/rules.py", ROOT / "config/effects.py")
]
SECTION_OF = {kind.__name__: name for name, kind in SECTIONS.items()}


def last_name(node: ast.AST | None) -> str:
    """`c` of `a.b.c`, or of `c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets and what they are given, `a, b = c, d` taken apart."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value


def sections_by_name(tree: ast.AST) -> dict[str, str]:
    """The names that stand for a section in a file."""
    names = {name: name for name in SECTIONS}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and last_name(node.annotation) in SECTION_OF:
            names[node.arg] = SECTION_OF[last_name(node.annotation)]
        for target, value in assignments(node):
            if last_name(value) in names:
                names[last_name(target)] = names[last_name(value)]
    return names


def keys_read(text: str) -> set[str]:
    """The dotted keys that a program reads: as attributes, or by name from settings that were flattened."""
    tree, read = ast.parse(text), set()
    names = sections_by_name(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            section = names.get(last_name(node.value))
            read.add(f"{section}.{node.attr}" if section else node.attr)
        elif isinstance(node, ast.Call) and last_name(node.func) in ("get", "setting"):
            read |= set(chain(*(_texts(argument) for argument in node.args[:1])))
    return read


def _texts(argument: ast.expr) -> set[str]:
    """The key that an argument is; of `f"section.{name}"` every key of the section."""
    if isinstance(argument, ast.Constant):
        return {str(argument.value)}
    if isinstance(argument, ast.JoinedStr) and isinstance(argument.values[0], ast.Constant):
        return {key for key in known_keys() if key.startswith(str(argument.values[0].value))}
    return set()


def test_every_setting_is_read_somewhere() -> None:
    read = set().union(*(keys_read(path.read_text()) for path in USERS))
    assert set(known_keys()) - read == set()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("config.sync.lag", True),
        ("own, other = config.sync, 3\nown.lag", True),
        ("def f(sync: SyncConfig): return sync.lag", True),
        ("settings.get('sync.lag')", True),
        ("settings.get(f'sync.{name}')", True),
        ("lag = config.eval.lag", False),
        ("config.sync.lag = 3", False),
        ("error('sync.lag')", False),
    ],
)
def test_a_reading_is_told_from_what_only_looks_like_one(text: str, read: bool) -> None:
    assert ("sync.lag" in keys_read(text)) == read
