"""What policies tell of themselves, and that nobody outside `selection/` goes by their names."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sbpipe
from sbpipe.config import TRAITS, SelectionConfig, Traits, keeps_all, known_keys
from sbpipe.selection import POLICIES, build_policy

ROOT = Path(sbpipe.__file__).parent
OUTSIDE = [path for path in sorted(ROOT.rglob("*.py")) if "selection" not in path.relative_to(ROOT).parts]


def names_in(node: ast.AST) -> set[str]:
    """The policies that an expression names."""
    texts = {inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant)}
    return {text for text in texts if isinstance(text, str) and text in POLICIES}


def compared(tree: ast.AST) -> set[str]:
    """The policies that a file compares something with."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Compare, ast.MatchValue))]
    return {name for node in nodes for name in names_in(node)}


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_outside_selection_goes_by_the_name_of_a_policy(path: Path) -> None:
    assert compared(ast.parse(path.read_text())) == set()


@pytest.mark.parametrize(
    "text",
    [
        "config.policy == 'rho'",
        "'sb' != name",
        "policy in ('full', 'random')",
        "policy not in {'steady'}",
        "match policy:\n case 'topk':\n  pass",
    ],
)
def test_a_comparison_with_the_name_of_a_policy_is_found(text: str) -> None:
    assert compared(ast.parse(text))


def test_the_settings_offer_the_policies_that_there_are() -> None:
    assert known_keys()["selection.policy"].metadata["choices"] == tuple(POLICIES) == tuple(TRAITS)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_tells_the_traits_of_its_name(name: str) -> None:
    assert POLICIES[name].traits is TRAITS[name]


def test_settings_are_checked_without_numpy() -> None:
    code = "import sys, sbpipe; sbpipe.resolve({'mode': 'inline'}); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("trait", "policies"),
    [
        ("needs_scores", {"kath18", "rank", "rho", "sb", "shuffled", "spread", "steady", "topk"}),
        ("needs_trained_losses", {"infobatch"}),
        ("needs_irreducible", {"rho"}),
        ("keeps_all", {"full"}),
        ("has_chances", set(POLICIES) - {"rho", "spread", "topk"}),
        ("has_own_weights", {"infobatch"}),
        ("is_steered", {"spread", "steady"}),
        ("sharpens_by_loss", {"steady"}),
        ("chooses_sets", {"spread"}),
        ("ranks_by_class", {"sb", "shuffled", "steady"}),
    ],
)
def test_each_trait_is_that_of_the_policies_it_was_made_for(trait: str, policies: set[str]) -> None:
    assert {name for name in POLICIES if getattr(POLICIES[name].traits, trait)} == policies


def test_what_wraps_a_policy_has_its_traits() -> None:
    wrapped = build_policy(SelectionConfig(policy="rho", outliers="clip", history_by="class"))
    assert wrapped.traits == POLICIES["rho"].traits != Traits()


def test_only_full_is_meant_to_keep_more_than_the_settings_say() -> None:
    rates = {name: SelectionConfig(policy=name, keep=0.25).keep_rate for name in POLICIES}
    assert rates == {name: 1.0 if name == "full" else 0.25 for name in POLICIES}


@pytest.mark.parametrize("name", [None, "", "retired", "sb", 3])
def test_a_policy_that_is_not_known_is_not_said_to_keep_everything(name: object) -> None:
    assert not keeps_all(name)
