"""Every name that a run writes is declared, every declared one can occur, and the page says so."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbpipe.runs.names import IN_SUMMARY, KINDS, NUMBERS, STAGES, TROUBLE, stages_of
from sbpipe.runs.names.fields import STAMP
from sbpipe.runs.names.files import FILES
from sbpipe.runs.names.markdown import page
from sbpipe.show.charts import theme
from sbpipe.show.trackers.scalars import NAMES as TRACKED
from tests.support.runs import small, train_inline, train_over_the_wire

ROOT = Path(__file__).parents[2]
STAMPS = {field.name for field in STAMP}
FIELDS = {kind.name: {field.name for field in kind.fields} for kind in KINDS.values()}
STAGE_NAMES = {stage.name for stage in STAGES}
OFTEN_ABSENT = {"selector": {"device", "pulls_weights", "reason"}, "built": {"irreducible"}}
"""Fields that only some events of a kind have."""
LONG = {"last_selection", "last_step", "left_out", "selections", "steps"}
"""Kinds that only a long run writes."""
RARE = LONG | {
    "auto",
    "check",
    "expired",
    "failed",
    "fenced",
    "fill",
    "given up",
    "keep",
    "passing over",
    "note",
    "restarted",
    "resumed",
    "statistics",
    "warning",
}
"""Kinds that a short run by a logical clock and without trouble does not write."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run in this process, and one with a selector behind real sockets."""
    folder = tmp_path_factory.mktemp("names")
    train_inline(small(mode="inline"), folder / "inline")
    train_over_the_wire(small(mode="lockstep", train__steps=6), folder / "wire")
    return {"inline": folder / "inline", "wire": folder / "wire"}


def events_in(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in run.glob("events-*.jsonl") for line in file.read_text().splitlines()]


@pytest.mark.parametrize("name", ["inline", "wire"])
def test_a_run_writes_the_declared_events_and_fields(runs: dict[str, Path], name: str) -> None:
    events = events_in(runs[name])
    for event in events:
        kind = event["kind"]
        assert event["role"] in KINDS[kind].roles or name == "inline"
        assert event.keys() <= STAMPS | FIELDS[kind], kind
        assert STAMPS | FIELDS[kind] - OFTEN_ABSENT.get(kind, set()) <= event.keys(), kind
    written = {event["kind"] for event in events}
    assert written >= KINDS.keys() - RARE - ({"built"} if name == "inline" else set())


@pytest.mark.parametrize("name", ["inline", "wire"])
def test_a_run_times_the_declared_stages(runs: dict[str, Path], name: str) -> None:
    for event in events_in(runs[name]):
        role = "selector" if event["kind"] == "selection" else "trainer"
        declared = STAGE_NAMES if name == "inline" else set(stages_of(role))
        assert event.get("spans", {}).keys() <= declared


@pytest.mark.parametrize("name", ["inline", "wire"])
def test_a_summary_has_the_declared_numbers(runs: dict[str, Path], name: str) -> None:
    assert json.loads((runs[name] / "summary.json").read_text()).keys() == NUMBERS.keys()


def test_a_summary_says_what_selectors_scored_in_and_how_many_there_were(runs: dict[str, Path]) -> None:
    summary = json.loads((runs["wire"] / "summary.json").read_text())
    assert (summary["scoring.precision"], summary["selectors"]) == ("fp32", 1)
    assert summary["scoring.precision_asked"] == "auto", "which under a clock means fp32"
    assert summary["keep.at_bound"] is None
    assert 0.0 < summary["trainer.selection_ratio"] < 1.0


@pytest.mark.parametrize("name", ["inline", "wire"])
def test_a_run_directory_holds_the_declared_files(runs: dict[str, Path], name: str) -> None:
    patterns = [file.replace("ID", "*").rstrip("/") for file in FILES]
    for entry in runs[name].iterdir():
        assert any(entry.match(pattern) for pattern in patterns), entry


WRITERS = ("events.write", "standing.record")
"""How the roles and the supervisor write events."""


def calls_in_sources() -> Iterator[tuple[str, str, ast.Call]]:
    """Every call of a method whose first argument is a word: (method, word, call)."""
    for path in sorted((ROOT / "sbpipe").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                owner = ast.unparse(node.func.value)
                for word in _words(node.args[0]):
                    yield f"{owner.rpartition('.')[2].lstrip('_')}.{node.func.attr}", word, node


def _words(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return [*_words(node.body), *_words(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def test_sources_write_the_declared_events_and_no_others() -> None:
    written = [(word, call) for method, word, call in calls_in_sources() if method.startswith(WRITERS)]
    assert {word for word, _ in written} | {"left_out"} == KINDS.keys()
    for word, call in written:
        assert {keyword.arg for keyword in call.keywords if keyword.arg} <= FIELDS[word], word


def test_sources_time_declared_stages_only() -> None:
    timed = {
        word
        for method, word, _ in calls_in_sources()
        if method in ("spans.span", "spans.cpu_span", "spans.add")
    }
    assert len(timed) > 15
    assert timed <= STAGE_NAMES


def test_every_stage_has_a_colour() -> None:
    assert STAGE_NAMES - theme.STAGE_COLOURS.keys() == set(stages_of("trainer", "processor"))


def test_trackers_copy_declared_fields() -> None:
    for kind, names in TRACKED.items():
        assert names.keys() <= FIELDS[kind]


def test_what_stands_for_the_summary_is_declared_on_both_sides() -> None:
    assert IN_SUMMARY.keys() <= FIELDS["progress"]
    assert {*IN_SUMMARY.values(), *TROUBLE} <= NUMBERS.keys()


def test_the_page_is_what_the_names_render() -> None:
    """`python -m sbpipe.runs.names > docs/events.md` writes it anew."""
    assert (ROOT / "docs" / "events.md").read_text(encoding="utf-8") == page()
