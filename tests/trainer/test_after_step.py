"""What a step leaves to be done: at once under a clock, beside the next step where cores are spare."""

import os
import subprocess
import sys
import threading

import pytest
from support.engines import engine_for, train
from support.runs import small

from sbpipe.config import Config
from sbpipe.machine.cores import SpareCores
from sbpipe.records import RunEnd
from sbpipe.runs.spans import Spans
from sbpipe.trainer.after_step import AfterStep
from sbpipe.trainer.setup import prepare

HANG_S = 60.0


@pytest.fixture
def after() -> AfterStep:
    return AfterStep(Spans())


def test_without_a_thread_it_is_done_at_once(after: AfterStep) -> None:
    done: list[str] = []
    after.do(lambda: done.append(threading.current_thread().name))
    assert done == [threading.current_thread().name]


def test_with_a_thread_nobody_waits_for_it_until_it_is_settled_and_it_is_done_in_order(
    after: AfterStep,
) -> None:
    done: list[int] = []
    may_go_on = threading.Event()
    after.start()
    after.do(lambda: done.append(may_go_on.wait(HANG_S)))
    after.do(lambda: done.append(2))
    after.go()
    assert done == []
    may_go_on.set()
    after.settle()
    assert done == [True, 2]
    after.stop()


def test_it_is_not_begun_before_the_loop_has_time_for_it(after: AfterStep) -> None:
    done: list[str] = []
    begun = threading.Event()
    after.start()
    after.do(lambda: (done.append("work"), begun.set()))
    done.append("loop")
    after.go()
    assert begun.wait(HANG_S)
    assert done == ["loop", "work"]
    after.stop()


def test_what_fails_in_it_is_raised_once_where_it_is_settled(after: AfterStep) -> None:
    after.start()
    after.do(lambda: [].pop())
    with pytest.raises(IndexError, match="pop from empty list"):
        after.settle()
    after.settle()
    after.stop()


def test_what_was_given_is_done_before_the_thread_ends_and_later_work_at_once(after: AfterStep) -> None:
    done: list[int] = []
    after.start()
    after.do(lambda: done.append(1))
    after.stop()
    after.do(lambda: done.append(2))
    assert done == [1, 2]


def test_an_error_that_nobody_settles_for_is_logged_when_the_thread_ends(
    after: AfterStep, caplog: pytest.LogCaptureFixture
) -> None:
    after.start()
    after.do(lambda: [].pop())
    after.stop()
    assert "after a step: pop from empty list" in caplog.text


def test_a_wait_for_it_is_time_of_the_loop() -> None:
    spans = Spans()
    after = AfterStep(spans)
    after.settle()
    assert spans.count["settle"] == 0, "nothing was under way"
    after.start()
    after.do(lambda: None)
    after.settle()
    assert (spans.count["settle"], spans.count["after"]) == (1, 1)
    after.stop()


def steerers(config: Config) -> set[str]:
    """The threads that looked at a step's losses, of an engine with cores to spare."""
    setup = prepare(config)
    engine = engine_for(setup)
    seen: set[str] = set()
    observe = engine.steering.observe

    def observed(*args: object) -> None:
        seen.add(threading.current_thread().name)
        observe(*args)  # type: ignore[arg-type]

    engine.steering.observe = observed  # type: ignore[method-assign, assignment]
    engine.begin()
    engine.start(SpareCores(os.sched_getaffinity(0)))
    train(setup, engine, 0, 6, 6)
    health = engine.steering.health.last if engine.after.settle() is None else None
    assert health is not None
    assert health.strength == engine.steering.strength, "the last step was looked at too"
    engine.stop(RunEnd.FINISHED)
    engine.close()
    return seen


def test_a_pipelined_loop_with_cores_to_spare_does_not_look_at_its_losses_itself() -> None:
    (name,) = steerers(small(mode="pipelined", selection__policy="steady"))
    assert name.startswith("after step")


def test_under_a_clock_the_loop_looks_at_them_itself_for_the_next_leases_depend_on_it() -> None:
    assert steerers(small(mode="inline", selection__policy="steady")) == {threading.current_thread().name}


def test_work_is_taken_until_the_very_end_of_a_program() -> None:
    program = """
import atexit
from sbpipe.runs.spans import Spans
from sbpipe.trainer.after_step import AfterStep
after = AfterStep(Spans())
after.start()
atexit.register(lambda: (after.do(lambda: print("done")), after.settle(), after.stop()))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S)
    assert (ended.stdout, ended.stderr) == ("done\n", "")
