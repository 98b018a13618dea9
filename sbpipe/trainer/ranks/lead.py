"""The setup of a rank, the engine of rank 0 that serves all ranks, and the end. Knows no command line."""

from functools import partial
from pathlib import Path
from typing import Any

from sbpipe.config import Config
from sbpipe.link.ports import Port
from sbpipe.machine import devices
from sbpipe.machine.place import Place
from sbpipe.records import Part
from sbpipe.runs.events import EventLog
from sbpipe.runs.names.files import CHECKPOINTS
from sbpipe.selection import TrainedLosses
from sbpipe.trainer.engine import Engine
from sbpipe.trainer.ranks.group import Group
from sbpipe.trainer.ranks.step import RankedStep, SharedSplit
from sbpipe.trainer.ranks.word import Do, Word
from sbpipe.trainer.setup import Setup, prepare
from sbpipe.weights.slots import Slots


def prepare_rank(config: Config, place: Place, run: Path, *, is_resumed: bool) -> tuple[Setup, Group]:
    """The setup of one rank; all ranks meet here, and rehearse a step on their shares."""
    name = devices.of_rank(config.train.device, place.local_rank)
    device = devices.resolve("train.device", name)
    devices.use(device)
    batch_size, wait_s = config.train.batch_size, config.train.ranks_wait_s
    group = Group(place.rank, place.world, device, batch_size=batch_size, wait_s=wait_s)
    make_step = partial(RankedStep, group=group, folder=run / CHECKPOINTS)
    with group.waiting_for("all ranks to rehearse a step"):
        setup = prepare(config, name, is_resumed=is_resumed, make_step=make_step, num_ranks=place.world)
    return setup, group


def engine_of(
    setup: Setup,
    group: Group | None,
    port: Port,
    slots: Slots,
    events: EventLog,
    trained: TrainedLosses | None = None,
) -> Engine:
    """The engine of a trainer; of several ranks it is rank 0's, and serves all of them."""
    if group is None:
        return Engine(setup.job(), port, slots, events, setup.spans, trained=trained)
    job = setup.job(SharedSplit(setup.data.train, group))
    engine = Engine(job, port, slots, events, setup.spans, trained=trained)
    step = setup.train_step
    assert isinstance(step, RankedStep), "ranks share their steps"
    if step.is_sharded:
        announce_publishes(group, engine)
        step.intervals = engine.intervals
    return engine


def announce_publishes(group: Group, engine: Engine) -> None:
    """Have the other ranks contribute their shares where weights are published outside of a step."""

    def announce(part: Part) -> None:
        group.tell(Word(Do.PUBLISH, part=part))

    engine.publisher.announce = announce


def finished(summary: dict[str, Any], group: Group | None) -> dict[str, Any]:
    """The run is over: let the other ranks end.

    Not called after an error: they may be in the middle of a step, and notice that rank 0 is gone.
    """
    if group is not None:
        group.tell(Word(Do.END))
        group.flush()
        group.order_end()
        group.leave()
    return summary
