"""The learning rate as a function of progress, so that every run ends decayed, whatever its budget."""

import math
from collections.abc import Callable

import torch

from sbpipe.config import ScheduleConfig

SCALE = "lr_scale"
"""The key under which an optimizer's parameter group keeps the factor of its rate."""


def onecycle(config: ScheduleConfig, progress: float) -> float:
    """Linear from 0 to the peak over `warmup`, then linear down to `final`."""
    if progress < config.warmup:
        return progress / config.warmup
    return config.final + (1.0 - config.final) * (1.0 - _after_warmup(config, progress))


def cosine(config: ScheduleConfig, progress: float) -> float:
    """Linear from 0 to the peak over `warmup`, then half a cosine down to `final`."""
    if progress < config.warmup:
        return progress / config.warmup
    return config.final + (1.0 - config.final) * 0.5 * (
        1.0 + math.cos(math.pi * _after_warmup(config, progress))
    )


def step(config: ScheduleConfig, progress: float) -> float:
    """A drop by `gamma` at each milestone reached; the paper's is 0.2 at 0.3, 0.6 and 0.8 of the run."""
    return config.gamma ** sum(progress >= milestone for milestone in config.milestones)


def constant(config: ScheduleConfig, progress: float) -> float:
    """The peak throughout."""
    return 1.0


SCHEDULES: dict[str, Callable[[ScheduleConfig, float], float]] = {
    "onecycle": onecycle,
    "cosine": cosine,
    "step": step,
    "constant": constant,
}


def rate_factor(config: ScheduleConfig, progress: float) -> float:
    """The learning rate as a share of its peak; progress is clamped to [0, 1]."""
    return SCHEDULES[config.name](config, min(max(progress, 0.0), 1.0))


def set_rate(optimizer: torch.optim.Optimizer, peak_lr: float, factor: float) -> None:
    """Give every parameter group the rate of this moment, times the group's own factor if it has one."""
    for group in optimizer.param_groups:
        rate = peak_lr * factor * group.get(SCALE, 1.0)
        if isinstance(group["lr"], torch.Tensor):  # a captured graph reads the rate from this very tensor
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _after_warmup(config: ScheduleConfig, progress: float) -> float:
    """Progress within the part after the warm-up."""
    return (progress - config.warmup) / (1.0 - config.warmup) if config.warmup < 1.0 else 0.0
