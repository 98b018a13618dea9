"""What counts as a plan that was right."""

import pytest

from sbpipe.bench.plan import period_ms, period_rows, share_rows


@pytest.mark.parametrize(
    ("planned", "ran", "is_met"),
    [(0.01, 0.15, False), (0.01, 0.04, True), (0.0, 0.06, False), (0.5, 0.6, True), (0.4, 0.6, False)],
)
def test_idle_time_is_right_within_20_percent_or_5_points(planned: float, ran: float, is_met: bool) -> None:
    *numbers, apart = share_rows("a job", "idle", planned, ran)
    assert [row.value for row in numbers] == [planned, ran]
    assert apart.is_met == is_met


@pytest.mark.parametrize(("planned", "ran", "is_met"), [(100.0, 119.0, True), (121.0, 100.0, False)])
def test_a_period_is_right_within_20_percent(planned: float, ran: float, is_met: bool) -> None:
    assert period_rows("a job", planned, ran)[-1].is_met == is_met


def test_the_evaluation_after_the_last_step_is_no_part_of_a_period() -> None:
    assert period_ms({"train_s": 28.0, "steps": 100, "trainer.evaluate_s": 4.0}) == pytest.approx(280.0)
