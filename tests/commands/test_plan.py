"""`sbpipe plan`: from numbers without measuring, and measured by two processes at once."""

import json

import pytest

from sbpipe.cli import build_parser
from sbpipe.commands import plan
from sbpipe.config import resolve
from sbpipe.errors import ConfigError, SbpipeError
from sbpipe.process.gauge import measure_both

TINY = {
    "data.examples": 200,
    "data.test_examples": 50,
    "train.batch_size": 16,
    "train.threads": 1,
    "selector.threads": 1,
    "eval.batch_size": 50,
}


def told(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert plan.run(build_parser().parse_args(["plan", *flags])) == 0
    return capsys.readouterr().out


def test_numbers_for_other_hardware_need_no_measuring(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbpipe.process.gauge.measure_both", None)  # it would fail if it were called
    text = told(capsys, "--step-ms", "100", "--score-us", "200", "--second-speed", "0.05")
    assert "use it" in text
    assert "as given" in text


def test_keep_of_the_settings_is_forecast_beside_what_auto_would_choose(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--step-ms", "128", "--score-us", "500", "--keep", "0.25", "--json")
    (row,) = json.loads(told(capsys, *flags))["rows"]
    assert row["plan"]["keep"] == 0.25
    assert row["plan"]["idle"] == pytest.approx(0.5)
    assert row["auto"]["keep"] == pytest.approx(0.5), "the greatest that the policy names"


def test_the_share_that_does_the_pulling_says_how_low_keep_auto_goes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--step-ms", "31", "--score-us", "1", "--set", "train.steps=100")
    (row,) = json.loads(told(capsys, *flags, "--ess", "0.18", "--json"))["rows"]
    assert row["plan"]["keep"] == pytest.approx(0.18)
    assert "--ess" in told(capsys, *flags)


@pytest.mark.parametrize(
    "flags",
    [
        ("--step-ms", "-1"),
        ("--score-us", "0"),
        ("--selectors", "0"),
        ("--worth", "-1"),
        ("--ess", "0"),
        ("--ess", "1.1"),
    ],
)
def test_costs_that_are_none_are_refused(flags: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=flags[0]):
        plan.run(build_parser().parse_args(["plan", *flags]))


def test_a_policy_that_scores_nothing_has_no_pipeline() -> None:
    with pytest.raises(ConfigError, match="no pipeline to plan"):
        plan.run(build_parser().parse_args(["plan", "--policy", "random"]))


def test_both_sides_are_measured_at_once_over_the_runs_own_link() -> None:
    sides = measure_both(TINY, resolve(TINY), 0.3)
    assert sides["trainer"]["steps"] >= 3
    assert sides["trainer"]["step_ms"] > 0
    assert sides["trainer"]["message_ms"] > 0
    assert sides["trainer"]["alone"]["steps"] > 0
    scoring = sides["selector"]["precisions"]["fp32"]
    assert scoring["score_us"] > 0
    assert scoring["lease_ms"] > 0, "a lease is read, answered over the link and written down"
    assert scoring["transfer_ms"] == 0.0, "weights come through shared memory"


def test_weights_that_are_pulled_say_how_long_that_takes() -> None:
    pulled = TINY | {"sync.shared_memory": False, "link.bind": "tcp://127.0.0.1:0"}
    sides = measure_both(pulled, resolve(pulled), 0.3)
    assert sides["selector"]["precisions"]["fp32"]["transfer_ms"] > 0


def test_what_is_not_given_is_measured_here_and_forecast(capsys: pytest.CaptureFixture[str]) -> None:
    settings = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
    text = told(capsys, "--seconds", "0.3", "--link-gbps", "1", *settings)
    assert "measured at the same time" in text
    assert "worth" in text.splitlines()[-1]


def test_a_side_that_cannot_be_built_says_why() -> None:
    nowhere = TINY | {"data.name": "nowhere"}
    config = resolve(nowhere)
    with pytest.raises(SbpipeError, match="there is no such data set"):
        measure_both(nowhere, config, 0.3)
