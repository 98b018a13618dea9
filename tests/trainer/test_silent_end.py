"""A selector that falls silent at the end of a run on a logical clock costs no weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import events_of, small, summary_of, train_over

from sbpipe.errors import PeerLost, ResultsLost
from sbpipe.link.messages import Message
from sbpipe.link.ports import Port
from sbpipe.records import Lease
from sbpipe.trainer.run import TrainerRun

CLOCKED: dict[str, Any] = {"mode": "fixed-lag", "sync__lag": 2, "checkpoint__every": 2}


def deaf_after(num_leases: int) -> Callable[[Port], Port]:
    """A way to a selector that hears nothing after so many leases."""

    def wrap(port: Port) -> Port:
        send, count = port.send, 0

        def send_or_not(peer: str, message: Message) -> bool:
            nonlocal count
            count += isinstance(message, Lease)
            return count > num_leases or send(peer, message)

        port.send = send_or_not  # type: ignore[method-assign]
        return port

    return wrap


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbpipe.trainer.engine.QUIET_DEADLINE_S", 0.2)


def test_a_run_whose_time_is_up_leaves_its_final_weights_though_a_lease_is_out(tmp_path: Path) -> None:
    # One step, since the time is up after the first; the next two batches never come.
    config = small(**CLOCKED, train__steps=0, train__seconds=1e-3)
    summary = train_over(config, tmp_path / "run", deaf_after(1))
    assert summary["status"] == "finished"
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-1.pt"]


def test_a_stop_while_a_selector_is_silent_saves_the_weights_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, begin = tmp_path / "run", TrainerRun.__init__

    def stop_at_step_3(self: TrainerRun, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs, doing=lambda what: stop(self))

    def stop(self: TrainerRun) -> None:
        if self._engine.stream.steps_done >= 3:
            self._loop.is_stopped.set()

    monkeypatch.setattr(TrainerRun, "__init__", stop_at_step_3)
    with pytest.raises(
        ResultsLost, match=r"lost: the checkpoint of step 3 .*weights are in .*weights-3.pt.*Go on with"
    ):
        train_over(small(**CLOCKED, train__steps=30), run, deaf_after(4))
    weights = torch.load(run / "checkpoints" / "weights-3.pt", weights_only=True)
    assert weights["step"] == 3
    assert weights["model"]
    assert summary_of(run)["status"] == "stopped"


def test_a_run_that_loses_its_last_selector_leaves_the_weights_it_has(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = small(
        **CLOCKED, train__steps=30, link__lost_after_s=0.3, link__wait_s=0.3, link__heartbeat_s=0.05
    )
    with pytest.raises(PeerLost, match="no selector"):
        train_over(config, run, deaf_after(5))
    assert (run / "checkpoints" / "weights-5.pt").is_file()
    assert "its weights are in" in events_of(run, "warning")[-1]["text"]
