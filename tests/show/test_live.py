"""The live page without a browser: folding events, finding runs, and what the server answers."""

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from sbpipe.errors import UserError
from sbpipe.runs.directory import RunDir
from sbpipe.runs.follower import TrainerFollower
from sbpipe.show.charts import theme
from sbpipe.show.live import listener, specs
from sbpipe.show.live.finder import check, find
from sbpipe.show.live.prometheus import metrics_text
from sbpipe.show.live.series import Mark, Series
from sbpipe.show.live.server import PAGE_FILES, build_app
from sbpipe.show.live.state import COLUMNS, RunState
from sbpipe.show.live.status import complaints, head, status
from sbpipe.show.live.timeline import drawing
from sbpipe.show.live.watcher import Sent, Watcher

START_T = 1000.0


def event(kind: str, t: float = START_T, **fields: Any) -> dict[str, Any]:
    return {"t": t, "clock": t - 900.0, "role": "trainer", "kind": kind, **fields}


def step(number: int, **fields: Any) -> dict[str, Any]:
    t = START_T + number + 1
    spans = {"wait": [t - 901.0, 0.25], "forward": [t - 900.7, 0.3], "backward": [t - 900.4, 0.4]}
    return event("step", t, step=number, candidates=10 * (number + 1), loss=2.0, spans=spans) | fields


def progress(number: int, **fields: Any) -> dict[str, Any]:
    told = {
        "share": number / 10,
        "step": number,
        "candidates": 10 * number,
        "elapsed_s": float(number),
        "selectors": 1,
        "idle": 0.2,
    }
    return event("progress", START_T + number, **told) | fields


def write(run: Path, *events: dict[str, Any], name: str = "events-trainer.jsonl") -> Path:
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.json").write_text("{}")
    with (run / name).open("a") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in events)
    return run


def folded(*events: dict[str, Any]) -> RunState:
    state = RunState()
    for entry in events:
        state.fold(entry)
    return state


# --- curves ---------------------------------------------------------------------------------------


def test_a_long_series_stays_bounded_and_keeps_its_mean_largest_and_last() -> None:
    series = Series({"x": "last", "y": "mean", "z": "max"}, limit=100)
    for x in range(100_000):
        series.add({"x": x, "y": x % 2, "z": 7 if x == 31_234 else 1})
    rows = series.rows()
    assert 50 <= len(rows) <= 101
    assert rows[-1][0] == 99_999
    assert max(row[2] or 0 for row in rows) == 7
    assert all(row[1] == 0.5 for row in rows[:-1])


def test_what_is_new_puts_a_copy_in_step_through_merges_and_cuts() -> None:
    series, copy, mark = Series({"step": "last"}, limit=20), [], Mark()
    for number in range(300):
        series.add({"step": number})
        if number == 150:
            series.cut("step", 100)
        if number % 3 == 0:
            change, mark = series.since(mark)
            assert change is not None
            copy[change["at"] :] = change["rows"]
            assert copy == series.rows()
    assert series.since(mark)[0] is not None
    assert series.since(series.since(mark)[1])[0] is None


def test_numbers_that_are_missing_are_left_out_of_a_mean() -> None:
    series = Series({"y": "mean", "z": "mean"}, limit=2)
    for value in (1.0, None):
        series.add({"y": value})
    assert series.rows() == [[1.0, None]]


# --- folding --------------------------------------------------------------------------------------


def test_events_become_latest_numbers_and_curves() -> None:
    state = folded(
        event("start", mode="pipelined"), progress(1), step(0, loss=2.5), progress(2), step(1, loss=1.5)
    )
    state.fold(event("eval", START_T + 2, step=2, candidates=20, elapsed_s=2.0, error=0.25))
    line = head("a", state, START_T + 3, 30.0, [])
    assert (line["state"], line["step"], line["loss"], line["error"], line["share"]) == (
        "running",
        2,
        1.5,
        0.25,
        0.2,
    )
    assert [row[3] for row in state.series["steps"].rows()] == [2.5, 1.5]
    assert state.series["evals"].rows() == [[2, 20, 2.0, 0.25]]


def test_what_is_known_of_the_loop_is_kept_and_ends_with_the_summary() -> None:
    loop = {"swing": 2.5, "ess": 0.75, "strength": 0.5, "guard": 0.9}
    state = folded(progress(1, **loop), step(0))
    assert {name: state.latest[name] for name in loop} == loop
    assert "sbpipe_swing_ratio{" in metrics_text([head("a", state, START_T + 3, 30.0, [])], START_T + 3)
    state.fold(event("summary", status="finished", **{"selection.swing": 1.25, "selection.ess": None}))
    assert (state.latest["swing"], state.latest["ess"]) == (1.25, 0.75)


def test_a_step_is_placed_when_it_ended_not_when_it_was_written() -> None:
    state = folded(
        progress(1), step(0, t=START_T + 5.0, clock=105.0, spans={"optimizer": [100.0, 0.5, 101.0, 0.5]})
    )
    assert state.series["steps"].rows()[0][2] == pytest.approx(1.5)


def test_a_resume_takes_back_what_came_after_its_checkpoint() -> None:
    state = folded(*(step(k) for k in range(5)), event("eval", step=5, error=0.5), event("resumed", step=3))
    assert [row[0] for row in state.series["steps"].rows()] == [1, 2, 3]
    assert state.series["evals"].rows() == []
    assert state.latest["step"] == 3
    state.fold(step(3, loss=9.0))
    assert [row[0] for row in state.series["steps"].rows()] == [1, 2, 3, 4]


@pytest.mark.parametrize(("events", "now", "expected"), [
    ([], 0.0, "waiting"),
    ([event("start")], START_T + 1, "waiting"),
    ([event("start")], START_T + 60, "stalled"),
    ([step(0)], START_T + 2, "running"),
    ([step(0)], START_T + 60, "stalled"),
    ([step(0), event("summary", status="finished")], START_T + 9999, "finished"),
    ([step(0), event("summary", status="stopped")], START_T + 9999, "stopped"),
    ([step(0), event("failed", error="boom")], START_T + 9999, "failed"),
    ([step(0), event("summary", status="stopped"), event("start"), event("resumed")], START_T + 2, "running"),
])  # fmt: skip
def test_a_run_is_in_one_of_six_states(events: list[dict[str, Any]], now: float, expected: str) -> None:
    assert status(folded(*events), now, 30.0) == expected


def test_warnings_failures_and_lost_selectors_are_said() -> None:
    state = folded(
        event("warning", text="keep is small"),
        event("selector", selector="s1", state="ready", device="cuda:1"),
        event("selector", selector="s1", state="lost", reason="silent for 10 s"),
        event("failed", error="out of memory"),
    )
    assert [entry["text"] for entry in state.warnings] == [
        "keep is small",
        "selector s1 lost: silent for 10 s",
        "out of memory",
    ]
    assert state.selectors["s1"]["state"] == "lost"
    assert state.selectors["s1"]["device"] == "cuda:1"


def test_a_diverged_run_is_warned_of() -> None:
    assert "diverged" in folded(event("eval", step=1, error=None)).warnings[0]["text"]


KINDS = (
    "start",
    "step",
    "progress",
    "eval",
    "selector",
    "selection",
    "built",
    "resumed",
    "failed",
    "warning",
    "summary",
)
NAMES = (
    "t clock step candidates loss spans error elapsed_s selector state status text mode seed device reason"
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "value",
    ["null", '"x"', "[]", "{}", "true", "NaN", "1e999", "9" * 400, "-1", '{"a":[1e999,"x"],"wait":[1]}'],
)
def test_values_of_the_wrong_type_do_no_harm(tmp_path: Path, kind: str, value: str) -> None:
    run = write(tmp_path / "run", step(0))
    with (run / "events-trainer.jsonl").open("a") as file:
        file.write("{" + "".join(f'"{name}":{value},' for name in NAMES.split()) + f'"kind":"{kind}"}}\n')
    told = watching(write(run, step(1), step(2))).news(["run"], Sent())
    json.dumps(told, allow_nan=False)
    # Either it is taken for what it says, or it is said that it could not be read.
    head = told["overview"]["heads"][0]
    assert head["num_events"] + ("1 damaged line was left out" in " ".join(head["notes"])) == 4


# --- long runs ------------------------------------------------------------------------------------


def steps(first: int, last: int, **fields: Any) -> dict[str, Any]:
    told = {
        "first": first,
        "step": last,
        "count": last - first + 1,
        "candidates": 10 * (last + 1),
        "loss": 2.0,
    }
    return event("steps", START_T + last + 1, **told, stages={"forward": [last - first + 1, 1.0]}) | fields


def test_windows_of_steps_are_points_of_the_curve() -> None:
    state = folded(step(0), steps(1, 4), steps(5, 8, loss=1.0))
    assert [row[0] for row in state.series["steps"].rows()] == [1, 5, 9]
    assert (state.latest["step"], state.latest["loss"]) == (9, 1.0)


def test_a_window_that_is_written_again_after_a_resume_counts_once() -> None:
    state = folded(step(0), steps(1, 4, is_partial=True), event("resumed", step=5), steps(1, 8))
    assert [row[0] for row in state.series["steps"].rows()] == [1, 9]


def test_what_a_long_run_does_now_comes_from_its_recent_files(tmp_path: Path) -> None:
    run = write(tmp_path / "run", event("start"), steps(0, 8191))
    last = [step(8192 + k, kind="last_step") for k in range(12)]
    write(run, *last, progress(8204), name="recent-trainer.jsonl")
    clock = last[-1]["clock"]
    answer = event("last_selection", clock + 900.0, lease=5, spans={"score": [clock - 1.5, 1.0]})
    write(run, event("built", selector="s1"), name="events-selector-s1.jsonl")
    write(run, answer, name="recent-selector-s1.jsonl")
    watcher = watching(run)
    told = watcher.news(["run"], Sent())
    assert told["overview"]["heads"][0]["step"] == 8204
    assert {bar["lane"] for bar in told["runs"]["run"]["timeline"]["bars"]} == {"trainer", "selector"}


def test_the_end_of_a_long_run_is_newer_than_its_recent_file(tmp_path: Path) -> None:
    run = write(tmp_path / "run", event("start"), progress(10), event("summary", status="finished", steps=10))
    write(run, progress(8), name="recent-trainer.jsonl")
    assert watching(run).overview()["heads"][0]["step"] == 10
    assert [event.get("step") for event in TrainerFollower(run).new_events()] == [8, None, 10, None]


def test_what_was_left_out_of_a_storm_is_said() -> None:
    state = folded(event("left_out", of="fenced", count=1234))
    assert "1,234 more events of kind fenced" in state.warnings[0]["text"]


# --- the timeline ---------------------------------------------------------------------------------


def selection(begin: float, *, wall_offset: float = 900.0, **spans: list[float]) -> dict[str, Any]:
    return {"kind": "selection", "selector": "s1", "t": begin + wall_offset, "clock": begin, "spans": spans}


def test_the_timeline_shows_both_roles_on_one_clock() -> None:
    state = folded(step(0), step(1), selection(101.9, score=[101.2, 0.2, 101.5, 0.4], idle=[101.4, 0.1]))
    drawn = drawing(state.timeline)
    scored = [(bar["begin"], bar["end"]) for bar in drawn["bars"] if bar["stage"] == "score"]
    assert [end - begin for begin, end in scored] == pytest.approx([0.2, 0.4])
    forward = next(bar for bar in drawn["bars"] if bar["stage"] == "forward")
    assert scored[0][0] - forward["begin"] == pytest.approx(101.2 - 101.3)
    assert max(bar["end"] for bar in drawn["bars"]) <= 0.0


def test_a_selector_on_another_host_is_put_on_the_trainers_clock() -> None:
    state = folded(step(0), step(1), selection(5001.5, wall_offset=-4000.0, score=[5001.2, 0.2]))
    bar = next(bar for bar in drawing(state.timeline)["bars"] if bar["stage"] == "score")
    assert bar["lane"] == "selector (other host)"
    assert bar["end"] - bar["begin"] == pytest.approx(0.2)


def test_waiting_in_the_timeline_is_a_share_of_its_window() -> None:
    drawn = drawing(folded(*(step(k) for k in range(4))).timeline)
    assert drawn["waited"]["trainer"] == pytest.approx(0.25, abs=0.01)


# --- finding --------------------------------------------------------------------------------------


def test_runs_are_found_to_a_depth_of_three_and_not_inside_of_runs(tmp_path: Path) -> None:
    for place in ("a", "x/b", "x/y/c", "x/y/z/deep", "a/checkpoints/not-a-run", ".hidden/h"):
        write(tmp_path / place)
    assert set(find([tmp_path]).runs) == {"a", "x/b", "x/y/c"}


def test_two_runs_of_one_name_get_longer_names(tmp_path: Path) -> None:
    one, other = write(tmp_path / "one" / "run"), write(tmp_path / "other" / "run")
    assert sorted(find([one.parent, other.parent]).runs) == ["other/run", "run"]
    assert len(find([one, other]).runs) == 2


def test_a_study_tells_its_progress_and_why_cells_failed(tmp_path: Path) -> None:
    cells = [{"cell": name, "arm": name, "seed": 0, "swept": {}, "settings": {}} for name in ("a", "b", "c")]
    (tmp_path / "plan.json").write_text(json.dumps({"kind": "sweep", "cells": cells}))
    for name, told in (("a", {"status": "finished"}), ("b", {"status": "failed", "error": "no memory"})):
        write(tmp_path / "cells" / name, step(0))
        (tmp_path / "cells" / f"{name}.json").write_text(json.dumps(told))
    found = find([tmp_path])
    counts = {word: found.studies[0][word] for word in ("total", "finished", "failed", "running", "waiting")}
    assert counts == {"total": 3, "finished": 1, "failed": 1, "running": 0, "waiting": 1}
    assert (set(found.runs), found.failures) == ({"a", "b"}, {"b": "no memory"})


def test_a_path_that_cannot_hold_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        check([tmp_path / "nowhere"])
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"):
        check([tmp_path / "file"])


# --- watching -------------------------------------------------------------------------------------


def watching(*paths: Path, now: float = START_T + 2) -> Watcher:
    watch = Watcher(paths, now=lambda: now)
    while watch.look():
        pass
    return watch


def test_a_page_is_told_everything_once_and_then_only_what_is_new(tmp_path: Path) -> None:
    run, sent = write(tmp_path / "run", step(0), step(1)), Sent()
    watch = watching(run)
    assert len(watch.news(["run"], sent)["runs"]["run"]["series"]["steps"]["rows"]) == 2
    assert watch.news(["run"], sent) == {}
    write(run, step(2))
    watch.look()
    told = watch.news(["run"], sent)["runs"]["run"]["series"]
    assert (told["steps"]["at"], len(told["steps"]["rows"])) == (2, 1)
    assert "evals" not in told


def test_a_run_that_is_overwritten_begins_anew_on_the_page(tmp_path: Path) -> None:
    run, sent = write(tmp_path / "run", step(0), step(1)), Sent()
    watch = watching(run)
    watch.news(["run"], sent)
    (run / "events-trainer.jsonl").unlink()
    write(run, step(0, t=START_T + 77.0, loss=9.0))
    watch.look()
    told = watch.news(["run"], sent)["runs"]["run"]
    assert told["is_anew"]
    assert [row[3] for row in told["series"]["steps"]["rows"]] == [9.0]


def test_a_new_run_in_a_folder_appears_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbpipe.show.live.watcher.FIND_EVERY_S", 0.0)
    write(tmp_path / "a", step(0))
    watch = watching(tmp_path)
    write(tmp_path / "b", step(0))
    watch.look()
    assert {line["name"] for line in watch.overview()["heads"]} == {"a", "b"}


def test_a_silent_run_whose_trainer_is_gone_says_how_to_go_on(tmp_path: Path) -> None:
    run = write(tmp_path / "run", step(0))
    held = RunDir.open(run, resume=True, overwrite=False)
    assert watching(run, now=START_T + 60).overview()["heads"][0]["notes"] == []
    held.close()
    assert "--resume" in watching(run, now=START_T + 60).overview()["heads"][0]["notes"][0]
    assert watching(run).overview()["heads"][0]["notes"] == []


def test_watching_leaves_no_trace_in_a_run(tmp_path: Path) -> None:
    run = write(tmp_path / "run", step(0))
    before = {entry.name: entry.stat().st_mtime_ns for entry in run.iterdir()}
    watching(run)
    assert {entry.name: entry.stat().st_mtime_ns for entry in run.iterdir()} == before


# --- metrics and health ---------------------------------------------------------------------------


def test_metrics_are_in_the_text_format_with_escaped_names() -> None:
    line = head('a"b\\c\nd', folded(progress(5), step(4)), START_T + 10, 30.0, [])
    text = metrics_text([line], START_T + 10)
    assert 'sbpipe_step{run="a\\"b\\\\c\\nd"} 5\n' in text
    assert 'sbpipe_last_event_age_seconds{run="a\\"b\\\\c\\nd"} 5.0\n' in text
    assert 'state="running"} 1\n' in text
    assert text.count("# TYPE sbpipe_share gauge\n") == 1
    assert "None" not in text


def test_health_complains_of_stalled_failed_and_vanished() -> None:
    stalled = head("slow", folded(step(0)), START_T + 100, 30.0, [])
    failed = head("bad", folded(event("failed", error="x")), START_T, 30.0, [])
    good = head("good", folded(step(0), event("summary", status="finished")), START_T + 9e9, 30.0, [])
    assert complaints([good], [], START_T + 100) == []
    reasons = complaints([stalled, failed, good], ["runs is gone"], START_T + 100)
    assert reasons == ["runs is gone", "slow: stalled, no event for 99 s", "bad: failed"]
    assert complaints([stalled, failed], [], START_T + 4000) == []


# --- the server -----------------------------------------------------------------------------------


class Client:
    """Asks the application without a network."""

    def __init__(self, *paths: Path, now: float = START_T + 2) -> None:
        answers = iter([False, True])  # a stream ends after its first message
        trusted = listener.trusted_hosts("127.0.0.1")
        self._app = build_app(watching(*paths, now=now), trusted, lambda: next(answers, True))

    def get(self, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8770") as client:
                return await client.get(path, **options)

        return asyncio.run(asyncio.wait_for(ask(), 30.0))


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(write(tmp_path / "run", event("start", mode="pipelined"), progress(1), step(0)))


def test_every_file_of_the_page_is_served(client: Client) -> None:
    for name, kind in PAGE_FILES.items():
        answer = client.get("/" if name == "index.html" else f"/{name}")
        assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, kind)
    assert "vegaEmbed" in client.get("/vega.js").text


def test_the_stream_begins_with_everything(client: Client) -> None:
    answer = client.get("/events", params={"show": "run"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    told = json.loads(next(line for line in answer.text.splitlines() if line.startswith("data: "))[6:])
    assert told["overview"]["heads"][0]["name"] == "run"
    assert len(told["runs"]["run"]["series"]["steps"]["rows"]) == 1


def test_a_page_elsewhere_cannot_reach_the_server_under_its_own_name(client: Client) -> None:
    assert client.get("/api/state", headers={"host": "evil.example"}).status_code == 400
    assert client.get("/api/state", headers={"host": "localhost:8770"}).status_code == 200


@pytest.mark.parametrize(
    "path", ["/../pyproject.toml", "/page/../server.py", "/%2e%2e/server.py", "/etc/passwd", "/server.py"]
)
def test_no_request_opens_another_file(client: Client, path: str) -> None:
    assert client.get(path).status_code == 404


def test_charts_name_the_runs_and_refuse_other_axes(client: Client) -> None:
    answer = client.get(
        "/api/charts", params={"show": ["run", "b"], "colour": [0, 3], "x": "step", "shade": "dark"}
    ).json()
    colour = answer["curves"][0]["spec"]["encoding"]["color"]["scale"]
    assert colour == {"domain": ["run", "b"], "range": [theme.CATEGORY[0], theme.CATEGORY[3]]}
    assert client.get("/api/charts", params={"x": "nonsense"}).status_code == 400


def test_every_axis_and_legend_has_a_title() -> None:
    for picture in specs.pictures(["a"], ["red"]):
        encoding = picture["spec"]["encoding"]
        assert all(encoding[channel]["title"] for channel in ("x", "y", "color"))
        assert "(" in encoding["y"]["title"] or picture["series"] == "steps"


def test_every_measure_has_a_column_and_a_dash_of_its_own() -> None:
    for picture in specs.pictures(["a"], ["red"]):
        assert set(picture["measures"]) <= set(COLUMNS[picture["series"]])
        dashes = picture["spec"]["encoding"].get("strokeDash", {"scale": {"range": [[1, 0]]}})["scale"][
            "range"
        ]
        assert len({tuple(dash) for dash in dashes}) == len(picture["measures"])


def test_health_is_ok_while_a_run_goes_on_and_metrics_are_served(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'sbpipe_up{run="run"} 1' in answer.text


def test_health_fails_when_a_run_stalls(tmp_path: Path) -> None:
    answer = Client(write(tmp_path / "run", step(0)), now=START_T + 1000).get("/healthz")
    assert (answer.status_code, answer.json()["status"]) == (503, "failing")
    assert "stalled" in answer.json()["reasons"][0]


def test_health_fails_when_what_is_watched_has_vanished(tmp_path: Path) -> None:
    run = write(tmp_path / "run", step(0), event("summary", status="finished"))
    assert Client(run).get("/healthz").status_code == 200
    run.rename(tmp_path / "elsewhere")
    assert "is gone" in Client(run).get("/healthz").json()["reasons"][0]


# --- where it listens -----------------------------------------------------------------------------


def test_a_taken_port_is_refused_by_name_and_passed_over_without() -> None:
    with listener.listen("127.0.0.1", None) as first, listener.listen("127.0.0.1", None) as second:
        assert first.getsockname()[1] != second.getsockname()[1]
        with pytest.raises(UserError, match="another program listens there"):
            listener.listen("127.0.0.1", first.getsockname()[1])


@pytest.mark.parametrize(
    ("host", "port", "said"), [("127.0.0.1", 99999, "--port"), ("no.such.host.invalid", 0, "--host")]
)
def test_a_place_that_cannot_be_listened_on_is_named(host: str, port: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        listener.listen(host, port)


def test_only_loopback_counts_as_private() -> None:
    assert all(listener.is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"))
    assert not any(
        listener.is_loopback(host)
        for host in ("0.0.0.0", "192.168.1.2", "example.org", socket.gethostname(), "")
    )
    assert "evil.example" not in listener.trusted_hosts("0.0.0.0")
    assert os.uname().nodename in listener.trusted_hosts("0.0.0.0")
