"""A study of worth as processes: killed, gone on with, and grown by a policy that shares what random ran."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from support.runs import forked, settings, started, wait_for


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Killed while its second cell runs, then given again with one policy more."""
    out = tmp_path_factory.mktemp("worth") / "out"
    flags = ["--seeds", "1", "--budgets", "1,2", "--out", str(out), "--no-report"]
    command = ["worth", *settings(train__steps=3, mode="inline"), *flags]
    second = out / "cells" / "random-x2_seed-0.json"
    with started(*command, "--policies", "sb") as first:
        wait_for("the second cell", second.exists)
        first.send_signal(signal.SIGKILL)
    first_summary = out / "cells" / "random-x1_seed-0" / "summary.json"
    before = first_summary.stat().st_mtime_ns
    done = forked(*command, "--policies", "sb,rank")
    return {"out": out, "done": done, "is_kept": first_summary.stat().st_mtime_ns == before}


def test_what_was_done_before_the_kill_is_not_run_again(grown: dict[str, Any]) -> None:
    assert grown["done"].returncode == 0, grown["done"].stdout + grown["done"].stderr
    assert grown["is_kept"]


def test_every_policy_has_a_worth_or_the_side_on_which_it_lies(grown: dict[str, Any]) -> None:
    results: dict[str, Any] = json.loads(Path(grown["out"], "results.json").read_text())
    policies = results["analysis"]["worth"]["policies"]
    assert list(policies) == ["sb", "rank"]
    assert all(of["worth"] is not None or of["beyond"] for of in policies.values())
    assert [point["updates"] for point in results["analysis"]["worth"]["curve"]] == [3, 6]
    assert "worth k" in grown["done"].stdout
