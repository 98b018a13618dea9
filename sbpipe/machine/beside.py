"""The cores of a selector that `auto` puts on the CPU because the trainer has the only accelerator.

Only torch can tell whether that is so, after roles are usually pinned. On all cores such a selector would
take those that load the trainer's batches and launch its kernels. It must not import torch.
"""

import logging
import os

from sbpipe.config import Config
from sbpipe.machine import cores

log = logging.getLogger("sbpipe")

_LOWEST = 19


def cores_left(config: Config, trainer: str, selector: str) -> list[int] | None:
    """The cores of the selector, for roles planned on these devices; None if it is no such selector."""
    own = config.selector
    is_late = selector == "cpu" and not cores.computes_on_cpu(own.device) and not own.threads
    return cores.beside_accelerator(config.data.workers) if is_late and trainer != "cpu" else None


def keep_to_what_is_left(config: Config, trainer: str, selector: str, *, is_guest: bool) -> None:
    """Pin this process if it is such a selector; a guest beside a user's own loop also gets low priority."""
    own = cores_left(config, trainer, selector)
    if own is None:
        return
    cores.keep_memory()
    number = len(os.sched_getaffinity(0))
    cores.pin(own)
    if is_guest:
        os.nice(_LOWEST)
    log.info(
        "selector.device = 'auto': the trainer has %s, the only accelerator, so candidates are scored on the "
        "CPU, on %d of %d cores: the others feed the trainer. selector.threads sets another number",
        trainer,
        len(own),
        number,
    )
