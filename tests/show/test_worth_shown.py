"""What is said and drawn of a policy's worth."""

import pytest

from sbpipe.runs.study.arm import Arm
from sbpipe.runs.study.arm_group import ArmGroup
from sbpipe.runs.study.trial import Trial
from sbpipe.runs.study.worth import analyse_worth
from sbpipe.show.report.worth_chart import worth_chart
from sbpipe.show.report.worth_tables import sentence


def policy_of(beyond: str | None, low: float | None, high: float | None) -> dict[str, object]:
    worth = 1.5 if beyond is None else None
    known = {"worth": worth, "beyond": beyond, "least": 0.5, "most": 4.0, "updates": 100, "is_flat": False}
    return known | {"has_interval": True, "low": low, "high": high}


@pytest.mark.parametrize(
    ("beyond", "low", "high", "said"),
    [
        ("below", None, 1.15, "cannot be told from random selection with these seeds, k < 0.5 (< 0.5 to"),
        ("below", None, 0.9, "is worse than random selection"),
        ("above", 0.9, None, "cannot be told from random selection with these seeds, k > 4 (0.90 to > 4)"),
        ("above", 1.2, None, "is worth more than was measured"),
        (None, 0.9, 1.8, "cannot be told from random selection"),
        (None, 1.2, None, "is worth k 1.50"),
    ],
)
def test_a_policy_is_judged_only_if_its_interval_leaves_out_one(
    beyond: str | None, low: float | None, high: float | None, said: str
) -> None:
    assert said in sentence("steady", policy_of(beyond, low, high))


def arm_of(name: str, updates: int, *errors: float) -> Arm:
    numbers = [{"steps": updates, "eval.error": error} for error in errors]
    return Arm(name, [Trial(name, seed, "finished", [], of) for seed, of in enumerate(numbers)])


def test_a_spread_as_large_as_the_error_stays_above_zero_on_a_log_axis() -> None:
    arms = [arm_of("r50", 50, 0.5, 0.5), arm_of("r400", 400, 0.01, 0.01), arm_of("p", 100, 0.0, 0.1)]
    analysis = {"worth": analyse_worth(arms, ["r50", "r400"])}
    spec = worth_chart(ArmGroup("", "worth", arms, analysis, None, "")).spec
    lows = [row["low"] for layer in spec["layer"] for row in layer["data"]["values"]]
    assert min(lows) > 0.0
