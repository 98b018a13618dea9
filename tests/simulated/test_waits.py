"""How often each role waits for its device, by line: a new `.item()` in a loop fails here."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.digests import config_of
from support.own_loops import pair_losses, selected, small_net, vectors
from support.runs import small, train_inline, train_over

import simulated
from sbpipe.selection import POLICIES
from sbpipe.trainer.engine import Engine
from simulated.roles import DEVICE, DRY, NEWER, THREAD, Seen, Waits, train, waits_of_leases, waits_of_steps

FIRST, LAST = 10, 35
"""Steps, and leases, between which waits are counted: the beginning and the end of a run may wait."""

BOUNDED = "12 times slower, staleness bounded"
RUNS: dict[str, tuple[float, dict[str, Any]]] = {
    "as fast as its host": (1.0, {}),
    "12 times slower": (12.0, {}),
    BOUNDED: (12.0, {"sync__max_staleness": 2}),
}
"""How slow the trainer's device is, and settings."""


@pytest.fixture(scope="module", params=RUNS)
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    slowness, given = RUNS[request.param]
    config = small(
        train__device="sim:0",
        selector__device="sim:1",
        train__steps=50,
        selection__keep=0.5,
        # Not auto: what is measured between leases must wait for the device, a few times in a run.
        selector__precision="fp32",
        selector__batch_size=16,
        **given,
    )
    simulated.set_slowness(0, slowness)
    return train(config, tmp_path_factory.mktemp("waits") / "run")


def between(
    counts: list[Waits], thread: str, kind: str, first: int = FIRST, last: int = LAST
) -> Counter[str]:
    """Waits of a thread of one kind, by line."""
    found: Any = Counter(counts[last])
    found.subtract(counts[first])
    return Counter(
        {where: count for (of, where, what), count in found.items() if (of, what) == (thread, kind) and count}
    )


def test_the_loop_waits_once_a_step_at_most_and_never_for_the_step_it_has_just_queued(seen: Seen) -> None:
    every = between(seen.per_step, "MainThread", DEVICE)
    assert sum(every.values()) <= LAST - FIRST, every
    assert not between(seen.per_step, "MainThread", NEWER)
    assert not between(seen.per_step, "MainThread", DRY)


def test_the_loop_never_waits_for_a_publish(seen: Seen) -> None:
    """Nor for a thread that does: for another thread it waits where it asks for the next batch."""
    every = between(seen.per_step, "MainThread", DEVICE)
    assert [where for where in every if "/weights/" in where] == []
    for_threads = between(seen.per_step, "MainThread", THREAD)
    assert {where.partition(":")[0] for where in for_threads} <= {"sbpipe/trainer/serving/feed.py"}


@pytest.mark.parametrize("thread", ["feed", "dispatch"])
def test_the_threads_beside_the_loop_never_wait_for_its_device(thread: str, seen: Seen) -> None:
    assert not between(seen.per_step, thread, DEVICE)


def test_the_selector_waits_once_a_lease_at_most_however_many_passes_it_takes(seen: Seen) -> None:
    every = between(seen.per_lease, "MainThread", DEVICE)
    assert sum(every.values()) <= LAST - FIRST, every


@pytest.mark.parametrize("seen", [BOUNDED], indirect=True)
def test_a_bound_on_staleness_is_kept_though_the_loop_waits_for_no_publish(seen: Seen) -> None:
    assert seen.summary["steps"] == 50
    assert seen.summary["staleness.max"] <= 2
    assert seen.races == []


BEGIN, END = 4, 16
"""Steps of a shorter run, between which waits are counted."""

LOOPS: dict[str, dict[str, Any]] = {
    "fresh weights": {"selection.policy": "steady"},
    "weights of the host": {"selection.policy": "sb", "selection.unbiased": 4.0},
    "clipped": {"optim.clip": 0.5},
    "an average that is published": {"train.ema": 0.9, "train.ema_publish": True},
    "in parts": {"train.accumulate": 2},
    "bf16": {"train.amp": "bf16"},
    "fp16, clipped": {"train.amp": "fp16", "optim.clip": 0.5},
    "AdamW": {"optim.name": "AdamW"},
    "nobody scores": {"selection.policy": "random"},
}


@pytest.mark.parametrize("what", LOOPS)
def test_a_loop_of_any_make_waits_once_a_step_at_most_and_for_the_step_before(
    what: str, run_path: Path
) -> None:
    config = config_of("pipelined", LOOPS[what] | {"train.device": "sim:0", "train.steps": 18}, run_path)
    with waits_of_steps() as per_step:
        train_over(config, run_path)
    every = between(per_step, "MainThread", DEVICE, BEGIN, END)
    assert sum(every.values()) <= END - BEGIN, every
    assert not between(per_step, "MainThread", NEWER, BEGIN, END)


def test_fp16_with_an_optimizer_that_torch_does_not_fuse_waits_once_more_where_torch_asks_whether_to_step(
    run_path: Path,
) -> None:
    given = {"optim.name": "RMSprop", "train.amp": "fp16", "train.device": "sim:0", "train.steps": 18}
    with waits_of_steps() as per_step:
        train_over(config_of("pipelined", given, run_path), run_path)
    every = between(per_step, "MainThread", DEVICE, BEGIN, END)
    assert sum(every.values()) <= 2 * (END - BEGIN), every
    (where,) = between(per_step, "MainThread", NEWER, BEGIN, END)
    assert where.startswith("sbpipe/trainer/step.py:")


def test_under_a_clock_the_losses_that_decide_the_next_selection_are_waited_for_once(run_path: Path) -> None:
    given = {"selection.policy": "infobatch", "train.device": "sim:0", "data.examples": 300}
    with waits_of_steps() as per_step:
        train_inline(config_of("inline", given | {"train.steps": 18}, run_path), run_path)
    every = between(per_step, "MainThread", DEVICE, BEGIN, END)
    assert sum(every.values()) <= END - BEGIN, every


def test_a_loop_of_ones_own_waits_once_a_step_at_most_and_for_the_step_before(tmp_path: Path) -> None:
    # At the end of a pass the losses of its last step are looked at: this one is longer.
    loader, optimizer = selected(
        vectors(32 * 4 * (END + 4)),
        small_net().to("sim:0"),
        tmp_path / "run",
        mode="pipelined",
        selector="sim:1",
        settings={"selection.late": "wait", "selector.precision": "fp32", "selector.batch_size": 16},
    )
    with waits_of_steps() as per_step:
        for batch in loader:
            per_step.begin()
            loss = loader.weigh(pair_losses(loader.model, batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if len(per_step) > END:
                break
    loader.close()
    every = between(per_step, "MainThread", DEVICE, BEGIN, END)
    assert sum(every.values()) <= END - BEGIN, every
    assert not between(per_step, "MainThread", NEWER, BEGIN, END)


def test_a_look_at_the_losses_of_this_step_behind_its_publish_is_counted(
    run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drains nothing, for the publish is queued behind the losses; still, it waits for this step."""
    finish = Engine.finish_step

    def looks(self: Engine, step: int, **how: bool) -> None:
        finish(self, step, **how)
        self.settle()

    monkeypatch.setattr(Engine, "finish_step", looks)
    config = config_of("pipelined", {"train.device": "sim:0", "train.steps": 18}, run_path)
    with waits_of_steps() as per_step:
        train_over(config, run_path)
    assert sum(between(per_step, "MainThread", NEWER, BEGIN, END).values()) == END - BEGIN


@pytest.mark.parametrize("policy", [name for name, rule in POLICIES.items() if rule.traits.needs_scores])
def test_one_read_a_lease_is_enough_for_every_policy_and_keeps_what_the_cpu_keeps(
    policy: str, tmp_path: Path
) -> None:
    given = {"selection.policy": policy, "selector.batch_size": 4, "train.steps": 10, "selection.keep": 0.5}
    here = train_inline(config_of("inline", given, tmp_path), tmp_path / "cpu")
    with waits_of_leases() as waits:
        there = train_inline(
            config_of("inline", given | {"train.device": "sim:0"}, tmp_path), tmp_path / "sim"
        )
    assert len(waits) >= 10
    assert max(waits) <= 1
    assert there["weights.digest"] == here["weights.digest"]
