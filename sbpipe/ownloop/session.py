"""The run behind a user's own loop: its directory, events, engine and selectors, from the first batch to the
end.

It does for a user's loop what `trainer/run.py` does for ours, without optimizer, checkpoint and evaluation:
those are the user's. It must not know how batches are paired with losses.
"""

import logging
import os
import shutil
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sbpipe.config import digest, warnings_of
from sbpipe.data.own_batches import OwnBatches, PartedBatches
from sbpipe.link.inline import InlinePort
from sbpipe.link.opening import Listener
from sbpipe.machine import devices
from sbpipe.machine.cores import NO_SPARE_CORES, SpareCores
from sbpipe.machine.device_spans import spans_on
from sbpipe.machine.place import Place, own_place
from sbpipe.ownloop.keeper import Keeper
from sbpipe.ownloop.plan import Plan
from sbpipe.ownloop.shares import SharedParts
from sbpipe.process.inline import INLINE, port_to
from sbpipe.records import Ids, Manifest, RunEnd
from sbpipe.runs.directory import CONFIG, TRAINER_EVENTS, RunDir, claim, is_finished, is_started_again
from sbpipe.runs.events import EventLog
from sbpipe.runs.names.files import JOB
from sbpipe.selection import TrainedLosses
from sbpipe.selector.assemble import assemble_own
from sbpipe.selector.forward import PASSES
from sbpipe.selector.job import OwnJob, write_job
from sbpipe.show.terminal import verdict_text
from sbpipe.trainer.engine import Engine
from sbpipe.trainer.job import Job
from sbpipe.trainer.ranks.group import Group
from sbpipe.trainer.ranks.lead import announce_publishes
from sbpipe.trainer.record.accounts import Accounts, Trained
from sbpipe.trainer.record.telemetry import Telemetry
from sbpipe.trainer.serving.feed import Examples
from sbpipe.trainer.setup import ON_DEVICE, refuse_direct, slots_for
from sbpipe.weights.gather import Shards
from sbpipe.weights.manifest import digest as digest_of
from sbpipe.weights.replica import SlotSource
from sbpipe.weights.slots import Slots

log = logging.getLogger("sbpipe")


class Session:
    """One run, open until `close`."""

    def __init__(self, plan: Plan, state: dict[str, Any] | None, group: Group | None = None) -> None:
        """`state` is the `state` of an earlier session, to go on from there; `group` are the ranks."""
        self._plan, self._group, self._began = plan, group, time.perf_counter()
        self.config, self.accumulate = plan.config, plan.accumulate
        self._device = next(plan.job.model.parameters()).device
        self._spare = _spare_cores() if self._device.type == "cpu" else NO_SPARE_CORES
        refuse_direct(self.config, self._device)
        # The device is never held back to measure gaps: it is the user's.
        self.spans, self._untimed = spans_on(self._device, ON_DEVICE._replace(is_looked_into=False))
        self.is_over = threading.Event()
        """Set when the loop must not wait for another batch."""
        self._opened = ExitStack()
        is_new = not plan.path.exists()
        resume = state is not None and (plan.path / CONFIG).exists()
        # Ranks that torchrun started again before the user's first checkpoint begin anew.
        place = own_place()
        is_again = state is None and place is not None and _is_replaced(plan.path, place)
        claim(plan.path, resume=resume, overwrite=is_again)
        try:
            self._open(resume=resume, overwrite=is_again)
            self._begin(state)
        except BaseException:
            self._opened.close()
            # A run that never began leaves nothing behind.
            if is_new:
                shutil.rmtree(plan.path, ignore_errors=True)
            raise

    def _open(self, *, resume: bool, overwrite: bool) -> None:
        config, plan = self.config, self._plan
        batches = self._batches()
        # Fork before this process has threads: a child would inherit the locks they hold.
        batches.start()
        # A copy: the probe tries other weights, and an inline selector needs a model of its own.
        twin = plan.twin()
        twin.model.to(self._device)
        manifest = plan.layout(twin)
        fingerprints = twin.fingerprints(batches, manifest, self._device)
        self._listener = None if config.is_one_process else self._listen()
        self._run_dir = RunDir.open(plan.path, resume=resume, overwrite=overwrite)
        self._opened.callback(self._run_dir.close)
        selector = INLINE if config.is_one_process else config.selector.device
        self._run_dir.write_environment({"trainer": devices.describe(self._device), "selector": selector})
        # After the environment: settings make it a run, and ranks killed in between must know it as theirs.
        if not resume:
            self._run_dir.write_config(config)
        self.events = EventLog(plan.path / TRAINER_EVENTS, "trainer")
        self._opened.callback(self.events.close)
        session = self._listener.port.session if self._listener else b""
        slots = slots_for(config, manifest, self._device, session)
        needs_losses = config.selection.traits.needs_trained_losses
        trained = TrainedLosses(plan.job.data.num_examples) if needs_losses else None
        job = self._job(manifest, fingerprints, self._examples(batches))
        port = self._listener.port if self._listener else self._inline_port(twin, slots, trained, manifest)
        self.engine = Engine(job, port, slots, self.events, self.spans, trained=trained)
        self._opened.callback(self.engine.close)
        if self._group is not None and Shards.are_in(plan.published):
            announce_publishes(self._group, self.engine)
        if self._listener is None:
            self.engine.admit(INLINE, devices.describe(self._device))
        self.telemetry = Telemetry(
            self.events,
            self.spans,
            self.engine,
            process_began=self._began,
            messages_are_beside=bool(self._spare) or self._device.type != "cpu",
        )
        self._accounts = Accounts(
            config,
            Trained(manifest, self._device, self._digest),
            self.spans,
            self.telemetry,
            self.engine,
            self.events,
            self._began,
            plan.path,
        )
        self.keeper = self._keeper_of(twin)

    def _job(self, manifest: Manifest, fingerprints: dict[str, str], examples: Examples) -> Job:
        """The engine's job: what it selects from, and what it publishes."""
        data = self._plan.job.data
        return Job(
            config=self.config,
            model=self._plan.published,
            manifest=manifest,
            examples=examples,
            num_examples=data.num_examples,
            num_classes=0 if data.classes is None else int(data.classes.max()) + 1,
            classes=data.classes,
            fingerprints=fingerprints,
        )

    def _examples(self, batches: OwnBatches) -> Examples:
        """Train batches in the parts that the loop wants; with several ranks, this rank's shares."""
        if self._group is None:
            return PartedBatches(batches, self.accumulate)
        return SharedParts(batches, self.accumulate, self._group)

    def _keeper_of(self, twin: OwnJob) -> Keeper:
        """The keeper of this host's selector, if the loop starts one; the selector's job lies in a file."""
        plan, config = self._plan, self.config
        count = int(plan.has_own_selector and self._listener is not None)
        if count:
            self._opened.callback((plan.path / JOB).unlink, missing_ok=True)
            # On the CPU: the selector's process need not see this one's device.
            write_job(OwnJob(twin.data, twin.model.cpu(), twin.losses), plan.path / JOB)
        # The trainer's device is the loop's: `auto` must not give it to a selector, nor leave another idle.
        told = replace(config, train=replace(config.train, device=str(self._device)))
        return Keeper(told, plan.path, count, self.is_over)

    def _digest(self) -> str | None:
        """The digest of the weights; None for a sharded model, since the other ranks do not join here."""
        return None if Shards.are_in(self._plan.job.model) else digest_of(self._plan.job.model)

    def _batches(self) -> OwnBatches:
        """Batches for one of the two roles in this process."""
        batches = OwnBatches(self._plan.job.data, seed=self.config.seed, device=self._device)
        self._opened.callback(batches.close)
        return batches

    def _listen(self) -> Listener:
        listener = Listener(self.config.link)
        self._opened.callback(listener.withdraw)
        return listener

    def _inline_port(
        self, twin: OwnJob, slots: Slots, trained: TrainedLosses | None, manifest: Manifest
    ) -> InlinePort:
        selector, _ = assemble_own(
            self.config,
            twin,
            self._batches(),
            SlotSource(slots),
            self._device,
            spans_on(self._device, PASSES)[0],
            self.events,
            trained,
            is_channels_last=manifest.is_channels_last,
        )
        return port_to(selector, self._device)

    def _begin(self, state: dict[str, Any] | None) -> None:
        plan = self._plan
        if self._listener is not None:
            self._listener.announce(plan.path)
        self._say_start()
        if state is None:
            self.engine.begin()
        else:
            self.engine.restore(state["engine"], state["step"])
            self.telemetry.restore(state["telemetry"], startup_s=state["totals"]["startup_s"])
            self._accounts.restore(state["totals"])
            self.events.write("resumed", step=state["step"])
        self.keeper.start()
        self.engine.start(self._spare)

    def _say_start(self) -> None:
        self.telemetry.say_start(is_endless=True)
        for warning in warnings_of(self.config):
            log.warning("%s", warning)
            self.events.write("warning", text=warning)
        if self._untimed:
            self._note(self._untimed)

    def _note(self, text: str) -> None:
        log.info("%s", text)
        self.events.write("note", text=text)

    # --- state ------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Train batches done."""
        return self.engine.stream.steps_done

    def state(self) -> dict[str, Any]:
        """Everything that another session needs to go on."""
        self.telemetry.flush()
        return {
            "step": self.step,
            "digest": digest(self.config),
            "engine": self.engine.state(self.step),
            "telemetry": self.telemetry.state(),
            "totals": self._accounts.totals(),
        }

    # --- the end ----------------------------------------------------------------------------------

    def close(self, end: RunEnd, reason: str = "") -> dict[str, Any]:
        """Say goodbye to the selectors, and write and return the summary."""
        self.telemetry.flush()
        numbers = {
            "train_s": self.telemetry.elapsed_s,
            **self.telemetry.summary(),
            **self.engine.steering.health.summary(),
            "selection.passed_over": self.engine.stream.num_passed_over,
        }
        if doubt := self.telemetry.doubt:
            self._note(doubt)
        self.engine.stop(end, reason)
        self.keeper.stop_selectors()
        summary = self._accounts.summary(end, numbers)
        self.telemetry.progress(1.0 if end is RunEnd.FINISHED else None, now=True)
        try:
            self._run_dir.write_summary(summary)
            self.engine.census.write(self._plan.path, _show_nothing)
        except OSError as error:
            # The weights are the user's own: only the run's numbers are lost, and these are printed.
            log.warning("%s did not take the summary of the run: %s", self._plan.path, error.strerror)
        self.events.write("summary", **summary)
        self._opened.close()
        self.keeper.wait_for_trackers()
        return summary

    def fail(self, reason: str) -> None:
        """The loop ended with an error: there is no summary, but nothing is left running."""
        self.events.write("failed", error=reason)
        self.engine.stop(RunEnd.FAILED, f"the user's loop failed: {reason}"[:200])
        self.keeper.stop_selectors()
        self._opened.close()
        self.keeper.wait_for_trackers()


def _spare_cores() -> SpareCores:
    """Where our threads find room beside the user's loop, if it computes on fewer cores than it may use.

    It is not pinned, so the kernel finds them a core that is free at the moment.
    """
    cores = os.sched_getaffinity(0)
    return SpareCores(cores) if torch.get_num_threads() < len(cores) else NO_SPARE_CORES


def _is_replaced(path: Path, place: Place) -> bool:
    """Whether restarted ranks may overwrite their own run; never one that has finished."""
    return is_started_again(path, place) and not is_finished(path)


def _show_nothing(ids: Ids) -> tuple[NDArray[np.uint8] | None, NDArray[np.int64], NDArray[np.int64]]:
    """A user's own examples have no pictures and no known targets."""
    unknown = np.full(len(ids), -1, np.int64)
    return None, unknown, unknown


def say_verdict(summary: dict[str, Any], path: Path) -> None:
    """Print the run's verdict on the error stream: standard output is the user's program's own."""
    sys.stderr.write(f"sbpipe: {summary.get('status', 'ended')}\n{verdict_text(summary)}\n")
    sys.stderr.write(f"run directory: {path}   (page: sbpipe report {path})\n")
