"""What the supervisor does about deaths and stops: real processes, but small ones that train nothing."""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from support.runs import HANG_S, small, wait_for

from sbpipe.process import supervisor
from sbpipe.process.bulletin import Bulletin
from sbpipe.process.child import Child, ChildFailed
from sbpipe.process.crew import Crew
from sbpipe.process.patience import LEAST_S, Patience
from sbpipe.process.restarts import Budget
from sbpipe.process.selector_care import MAX_RESTARTS, SelectorCare
from sbpipe.process.standing import Standing
from sbpipe.process.supervisor import Ending, Supervisor
from sbpipe.runs.restarts import count_restarts
from sbpipe.show.terminal import Display

# --- counting -------------------------------------------------------------------------------------


def test_a_budget_forgives_before_it_counts() -> None:
    budget = Budget(2)
    assert [budget.grant(is_forgiven=False) for _ in range(3)] == [True, True, False]
    assert budget.grant(is_forgiven=True)
    assert budget.in_a_row == 1


def test_restarts_in_a_row_come_later_and_later() -> None:
    budget, delays = Budget(100), []
    for _ in range(40):
        budget.grant(is_forgiven=False)
        delays.append(budget.delay_s)
    assert delays[:4] == [0.0, 1.0, 2.0, 3.0]
    assert max(delays) == 30.0


def test_patience_lasts_while_there_are_signs_of_life() -> None:
    patience = Patience()
    patience.begin(0.0)
    for now in range(0, 600, 20):
        patience.see(now, float(now))
        assert not patience.is_over(now + 1.0)
    assert patience.is_over(580.0 + patience.allowed_s + 1.0)


def test_patience_grows_with_the_longest_silence_so_far_and_not_with_start_up() -> None:
    patience = Patience()
    patience.see(0, 0.0)
    patience.see(1, 500.0)  # start-up
    patience.see(2, 501.0)
    assert patience.allowed_s == LEAST_S
    patience.see(3, 541.0)
    assert patience.allowed_s == 120.0


# --- what a child tells ---------------------------------------------------------------------------


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def child(tmp_path: Path, program: str, role: str = "trainer") -> Child:
    return Child(role, ["sh", "-c", program], tmp_path / "logs" / f"{role.replace(' ', '-')}.log")


def ended(one: Child) -> Child:
    one.start()
    assert one.process is not None
    one.process.wait(HANG_S)
    return one


def test_a_last_word_comes_through_memory_and_not_to_grandchildren(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys\n"
        "from sbpipe.process.bulletin import Bulletin\n"
        "bulletin = Bulletin.inherited()\n"
        "bulletin.doing('measuring')\n"
        "bulletin.leave({'error': 'disk full', 'summary': {'steps': 3}})\n"
        "sys.exit(7 if Bulletin.inherited() is None else 1)\n"
    )
    told = ended(Child("trainer", python(program), tmp_path / "logs" / "trainer.log"))
    assert told.bulletin is not None
    assert told.bulletin.news == (2, "ending")
    (told.log).unlink()
    failed = ChildFailed(told)
    assert (str(failed), failed.exit_code, failed.summary) == ("disk full", 7, {"steps": 3})


def test_an_open_file_that_is_no_bulletin_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "precious").open("w") as file:
        monkeypatch.setenv("SBPIPE_BULLETIN", str(file.fileno()))
        assert Bulletin.inherited() is None


def test_a_restart_without_a_place_for_its_log_goes_without(tmp_path: Path) -> None:
    one = ended(child(tmp_path, "exit 3"))
    one.log.unlink()
    one.log.mkdir()
    assert ended(one).code == 3
    assert one.said() == []


def test_deaths_before_the_run_began_are_recorded_once_it_has(tmp_path: Path) -> None:
    standing = Standing(tmp_path, resume=False)
    standing.record_death("selector 0", -9)
    assert count_restarts(tmp_path)["restarts.selector"] == 0
    (tmp_path / "config.json").write_text("{}")
    standing.write_deaths()
    standing.write_deaths()
    standing.record_death("selector 0", -9, is_given_up=True)
    lines = (tmp_path / "events-supervisor.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["restarted", "given up"]
    assert count_restarts(tmp_path)["restarts.selector"] == 1


# --- a crew of shell scripts ----------------------------------------------------------------------


class Run:
    """A run whose trainer is a shell script; it is given the number of its start as $1, --resume as $2."""

    def __init__(self, path: Path, script: str, selectors: tuple[str, ...] = (), **config: object) -> None:
        self.path, self.said = path, StringIO()
        self.starts: list[str] = []
        path.mkdir()
        trainer = Child("trainer", [], path / "logs" / "trainer.log")
        trainer.command = self._command(script, "")

        def renew(resumed: bool) -> None:
            trainer.command = self._command(script, "--resume" if resumed else "")

        crew = Crew(
            trainer,
            renew,
            selectors=[child(path, program, f"selector {k}") for k, program in enumerate(selectors)],
        )
        self._make: Callable[[int], Supervisor] = lambda most: Supervisor(
            small(**config), crew, path, Standing(path, resume=False), most, Display(self.said)
        )
        self.crew = crew

    def _command(self, script: str, flag: str) -> list[str]:
        count = (
            f'n=$(($(cat "{self.path}/starts" 2>/dev/null || echo 0) + 1)); echo $n > "{self.path}/starts"; '
        )
        return ["sh", "-c", f'cd "{self.path}"; flag={flag!r}; {count}{script}']

    def supervise(self, most: int = 3) -> Ending:
        return self._make(most).run()

    @property
    def num_starts(self) -> int:
        return int((self.path / "starts").read_text())


BEGIN = "echo {} > config.json; mkdir -p checkpoints; "
DIE = "kill -9 $$"


def test_a_dead_trainer_goes_on_from_its_last_checkpoint(run_path: Path) -> None:
    run = Run(
        run_path,
        f'if [ "$flag" = --resume ]; then exit 0; fi; {BEGIN} touch checkpoints/step-40.pt; {DIE}',
    )
    assert run.supervise().is_finished
    assert (
        "ended with code -9; starting it again from the checkpoint of step 40 (restart 1 of 3"
        in run.said.getvalue()
    )
    (event,) = [json.loads(line) for line in (run_path / "events-supervisor.jsonl").read_text().splitlines()]
    assert (event["kind"], event["child"], event["code"], event["step"]) == ("restarted", "trainer", -9, 40)
    assert count_restarts(run_path) == {"restarts.trainer": 1, "restarts.selector": 0}


def test_a_trainer_that_died_before_its_run_began_begins_anew(run_path: Path) -> None:
    run = Run(run_path, f'[ "$flag" = --resume ] && exit 9; [ $n = 2 ] && exit 0; {DIE}')
    assert run.supervise().is_finished
    assert "from the beginning" in run.said.getvalue()


@pytest.mark.timeout(60)
def test_a_trainer_that_gets_nowhere_ends_the_run(run_path: Path) -> None:
    run = Run(run_path, f"{BEGIN} {DIE}")
    with pytest.raises(ChildFailed, match="after 2 restarts without a new checkpoint") as caught:
        run.supervise(most=2)
    assert (caught.value.exit_code, run.num_starts) == (137, 3)


def test_a_trainer_that_gets_on_is_started_again_for_ever(run_path: Path) -> None:
    run = Run(run_path, f"{BEGIN} [ $n = 6 ] && exit 0; touch checkpoints/step-$n.pt; {DIE}")
    assert run.supervise(most=1).is_finished
    assert run.num_starts == 6


@pytest.mark.parametrize("code", [2, 3, 4, 5, 130])
def test_a_trainer_that_ended_for_a_reason_is_not_started_again(run_path: Path, code: int) -> None:
    run = Run(run_path, f"{BEGIN} exit {code}")
    with pytest.raises(ChildFailed) as caught:
        run.supervise()
    assert (caught.value.exit_code, run.num_starts) == (code, 1)


def test_a_bug_before_the_run_began_is_told_at_once(run_path: Path) -> None:
    run = Run(run_path, "echo 'RuntimeError: the database is down' >&2; exit 1")
    with pytest.raises(ChildFailed, match="the database is down") as caught:
        run.supervise()
    assert (caught.value.exit_code, run.num_starts) == (1, 1)


def test_a_bug_in_the_middle_of_a_run_begins_again(run_path: Path) -> None:
    run = Run(run_path, f"{BEGIN} [ $n = 2 ] && exit 0; exit 1")
    assert run.supervise().is_finished


def test_a_trainer_killed_after_it_had_left_everything_has_finished(run_path: Path) -> None:
    run = Run(run_path, f"""{BEGIN} echo '{{"status": "finished"}}' > summary.json; {DIE}""")
    assert run.supervise().is_finished
    assert run.num_starts == 1


def test_where_the_run_directory_is_gone_nothing_begins_from_step_0(run_path: Path) -> None:
    script = f'[ "$flag" = --resume ] && exit 2; {BEGIN} sleep 1; rm config.json; {DIE}'
    with pytest.raises(ChildFailed) as caught:
        Run(run_path, script).supervise()
    assert caught.value.exit_code == 2


def handles_in_memory() -> int:
    """Files in memory that this process holds open."""
    links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return sum(link.is_symlink() and os.readlink(link).startswith("/memfd:") for link in links)


@pytest.mark.parametrize("code", [0, 2])
def test_a_run_that_has_ended_leaves_no_files_open(run_path: Path, code: int) -> None:
    before = handles_in_memory()
    with pytest.raises(ChildFailed, match="code 2") if code else contextlib.nullcontext():
        Run(run_path, f"{BEGIN} exit {code}", selectors=("exit 0", "exit 0")).supervise()
    assert handles_in_memory() == before


def test_where_a_second_process_cannot_start_the_first_does_not_go_on(run_path: Path) -> None:
    run = Run(run_path, f"{BEGIN} exec sleep 300", selectors=("exit 0",))
    run.crew.selectors[0].command = ["/none/selector"]
    with pytest.raises(FileNotFoundError, match="/none/selector"):
        run.supervise()
    assert run.crew.trainer.code == -signal.SIGTERM


def test_a_trainer_that_cannot_start_is_not_waited_for(run_path: Path) -> None:
    run = Run(run_path, "")
    run.crew.trainer.command = ["/none/trainer"]
    with pytest.raises(FileNotFoundError, match="/none/trainer"):
        run.supervise()


# --- selectors ------------------------------------------------------------------------------------


class Care:
    """A selector's care without a trainer."""

    def __init__(self, tmp_path: Path, *programs: str, answers: int = 0, **config: object) -> None:
        self.said, self.now, self.answers = StringIO(), 0.0, answers
        self.children = [child(tmp_path, program, f"selector {k}") for k, program in enumerate(programs)]
        for one in self.children:
            ended(one)
        self.care = SelectorCare(
            small(**config),
            self.children,
            Standing(tmp_path, resume=False),
            lambda pid: self.answers,
            Display(self.said),
        )

    def live_through(self, deaths: int) -> None:
        """So many deaths of the first one, each soon after its start."""
        for _ in range(deaths):
            one = self.children[0]
            self.now = one.started_at + 1.0
            self.care.look(self.now)
            if one.is_given_up:
                return
            self.care.look(one.restart_at)
            assert one.process is not None
            one.process.wait(HANG_S)


def test_a_selector_that_did_useful_work_is_never_given_up(tmp_path: Path) -> None:
    care = Care(tmp_path, "exit 7", answers=100, mode="lockstep")
    care.live_through(3 * MAX_RESTARTS)
    assert not care.children[0].is_given_up


def test_a_selector_that_lived_long_is_forgiven(tmp_path: Path) -> None:
    care = Care(tmp_path, "exit 7", mode="lockstep")
    care.live_through(MAX_RESTARTS)
    one = care.children[0]
    care.care.look(one.started_at + 301.0)
    assert "(restart 1 of 5 in a row" in care.said.getvalue().splitlines()[-1]


def test_the_run_ends_with_its_last_selector_only_where_the_trainer_may_not_go_on_alone(
    tmp_path: Path,
) -> None:
    care = Care(tmp_path, "exit 7", mode="lockstep")
    with pytest.raises(ChildFailed) as caught:
        care.live_through(MAX_RESTARTS + 1)
    assert caught.value.exit_code == 7


@pytest.mark.parametrize("fallback", ["wait", "fail"])
def test_a_fallback_that_needs_a_selector_ends_the_run_without_one(tmp_path: Path, fallback: str) -> None:
    care = Care(tmp_path, "exit 7", selection__late="fill", selection__fallback=fallback)
    with pytest.raises(ChildFailed):
        care.live_through(MAX_RESTARTS + 1)


def test_a_trainer_that_fills_goes_on_alone(tmp_path: Path) -> None:
    care = Care(tmp_path, "exit 7", selection__late="fill")
    care.live_through(MAX_RESTARTS + 1)
    assert "is given up; training goes on, batches are filled without scores" in care.said.getvalue()


def test_a_trainer_that_waits_goes_on_alone_once_it_knows_scores(tmp_path: Path) -> None:
    care = Care(tmp_path, "exit 7", selection__late="wait")
    care.care.was_ready = True
    care.live_through(MAX_RESTARTS + 1)
    assert care.children[0].is_given_up


def test_another_selector_at_work_is_enough(tmp_path: Path) -> None:
    care = Care(tmp_path, "exit 7", "exit 0", mode="lockstep")
    care.live_through(MAX_RESTARTS + 1)
    assert "1 selector(s) are left" in care.said.getvalue()


def test_a_mistake_in_the_settings_of_a_selector_ends_the_run_at_once(tmp_path: Path) -> None:
    care = Care(tmp_path, "exit 2", selection__late="fill")
    with pytest.raises(ChildFailed):
        care.live_through(1)


def test_a_selector_that_finds_its_data_gone_after_days_is_given_up(tmp_path: Path) -> None:
    care = Care(tmp_path, "exit 2", selection__late="fill")
    care.care.was_ready = True
    care.live_through(1)
    assert care.children[0].is_given_up


# --- stopping -------------------------------------------------------------------------------------

SLOW = """
import signal, sys, time
from sbpipe.process.bulletin import Bulletin
bulletin, asked = Bulletin.inherited(), []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
open({ready!r}, "w").close()
while not asked:
    time.sleep(0.01)
for _ in range({signs}):
    bulletin.doing("writing a checkpoint")
    time.sleep({pause})
sys.exit(130)
"""


def stop_when(path: Path) -> threading.Thread:
    """Ctrl-C as soon as a file is there."""

    def run() -> None:
        wait_for(str(path), path.exists)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def slow_run(run_path: Path, *, signs: int, pause: float) -> Run:
    run = Run(run_path, "")
    ready = run_path / "ready"
    run.crew.trainer.command = python(SLOW.format(ready=str(ready), signs=signs, pause=pause))
    stop_when(ready)
    return run


def test_a_trainer_that_is_busy_leaving_a_checkpoint_is_waited_for(
    run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbpipe.process.patience.LEAST_S", 1.0)
    run = slow_run(run_path, signs=40, pause=0.05)
    assert not run.supervise().is_finished
    assert run.crew.trainer.code == 130


def test_a_trainer_that_shows_no_sign_of_life_is_killed_and_that_is_said(
    run_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbpipe.process.patience.LEAST_S", 0.5)
    run = slow_run(run_path, signs=1, pause=1000.0)
    assert not run.supervise().is_finished
    assert run.crew.trainer.code == -signal.SIGKILL
    assert "(last seen writing a checkpoint)" in run.said.getvalue()


def test_what_it_is_waited_for_is_said(run_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_SAY_EVERY_S", 0.2)
    run = slow_run(run_path, signs=20, pause=0.05)
    run.supervise()
    assert "stopping: the trainer is writing a checkpoint" in run.said.getvalue()
