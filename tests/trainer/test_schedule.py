"""Schedules: the rate as a function of progress, decayed at the end whatever the budget."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sbpipe.config import ScheduleConfig
from sbpipe.trainer.schedule import SCHEDULES, rate_factor, set_rate

SHARES = st.floats(0.0, 1.0)


def factors(config: ScheduleConfig, count: int = 101) -> list[float]:
    return [rate_factor(config, n / (count - 1)) for n in range(count)]


def test_every_schedule_that_the_settings_offer_exists() -> None:
    choices = ScheduleConfig.__dataclass_fields__["name"].metadata["choices"]
    assert set(choices) == set(SCHEDULES)


@pytest.mark.parametrize("name", ["onecycle", "cosine"])
def test_the_rate_rises_through_the_warmup_and_falls_to_the_end(name: str) -> None:
    rates = factors(ScheduleConfig(name=name, warmup=0.2, final=0.1))
    assert all(before < after for before, after in pairwise(rates[:21]))
    assert all(before > after for before, after in pairwise(rates[20:]))
    assert (rates[0], rates[20], rates[-1]) == pytest.approx((0.0, 1.0, 0.1))


def test_onecycle_is_made_of_two_straight_lines() -> None:
    config = ScheduleConfig(name="onecycle", warmup=0.2, final=0.0)
    assert [rate_factor(config, progress) for progress in (0.1, 0.4, 0.6)] == pytest.approx([0.5, 0.75, 0.5])


def test_cosine_stays_above_the_line_first_and_below_it_last() -> None:
    config = ScheduleConfig(name="cosine", warmup=0.0)
    assert rate_factor(config, 0.25) > 0.75
    assert rate_factor(config, 0.5) == pytest.approx(0.5)
    assert rate_factor(config, 0.75) < 0.25


def test_step_divides_by_five_at_the_papers_milestones() -> None:
    config = ScheduleConfig(name="step")
    rates = [rate_factor(config, epoch / 200) for epoch in (0, 59, 60, 119, 120, 159, 160, 200)]
    assert rates == pytest.approx([1, 1, 0.2, 0.2, 0.04, 0.04, 0.008, 0.008])


def test_the_order_of_milestones_does_not_matter() -> None:
    assert factors(ScheduleConfig(name="step", milestones=[0.8, 0.3])) == factors(
        ScheduleConfig(name="step", milestones=[0.3, 0.8])
    )


def test_constant_is_constant() -> None:
    assert set(factors(ScheduleConfig(name="constant"))) == {1.0}


@pytest.mark.parametrize("name", ["onecycle", "cosine"])
def test_no_warmup_starts_at_the_peak_and_nothing_but_warmup_ends_there(name: str) -> None:
    assert rate_factor(ScheduleConfig(name=name, warmup=0.0), 0.0) == 1.0
    assert factors(ScheduleConfig(name=name, warmup=1.0))[-1] == 1.0


@given(st.sampled_from(sorted(SCHEDULES)), SHARES, SHARES, st.floats(-10.0, 10.0))
def test_the_factor_stays_between_zero_and_one_and_progress_is_clipped(
    name: str, warmup: float, final: float, progress: float
) -> None:
    config = ScheduleConfig(name=name, warmup=warmup, final=final)
    assert 0.0 <= rate_factor(config, progress) <= 1.0
    assert rate_factor(config, progress) == rate_factor(config, min(max(progress, 0.0), 1.0))


def test_set_rate_reaches_every_group_also_where_the_rate_is_a_tensor() -> None:
    first, second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    groups: list[dict[str, Any]] = [
        {"params": first.parameters()},
        {"params": second.parameters(), "lr": torch.tensor(9.0)},
    ]
    optimizer = torch.optim.Adam(groups, lr=9.0, foreach=False)
    set_rate(optimizer, peak_lr=0.4, factor=0.5)
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.2, 0.2])
