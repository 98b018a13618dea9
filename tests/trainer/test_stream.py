"""Which weights score which batch, and how much is leased: exact schedules, no threads."""

import dataclasses

import numpy as np
import pytest
from support.runs import answer_all, small

from sbpipe.config import Config
from sbpipe.records import Lease, Part, Selection, TrainBatch
from sbpipe.trainer.serving.peers import Peer
from sbpipe.trainer.stream import credit
from sbpipe.trainer.stream.stream import Stream
from sbpipe.trainer.stream.yields import StarvedError


def drive(
    config: Config, num_examples: int = 600, peers: tuple[str, ...] = ("a",), steps: int = 30
) -> tuple[Stream, list[TrainBatch]]:
    """Run a stream by hand: grant, answer at once with the newest weights, train, publish every interval."""
    stream = Stream(config, num_examples)
    batches: list[TrainBatch] = []
    crew = [Peer(name, "cpu", is_ready=True) for name in peers]
    stream.versions.offer(Part.WHOLE, 0)
    while len(batches) < steps:
        for _ in range(20):
            stream.is_waiting = not stream.ready
            for _, lease in stream.grant(crew):
                assert stream.accept(answer_of(stream, lease)) == ""
        if not stream.ready:
            break
        batches.append(stream.ready.popleft())
        stream.start()
        stream.is_waiting = False
        for _, lease in stream.grant(crew):  # granted while the step trains
            assert stream.accept(answer_of(stream, lease)) == ""
        stream.finish_step()
        if stream.steps_done % config.sync_interval == 0:
            stream.versions.offer(Part.WHOLE, stream.steps_done)
        if stream.versions.fast_interval and stream.steps_done % stream.versions.fast_interval == 0:
            stream.versions.offer(Part.FAST, stream.steps_done)
    return stream, batches


def answer_of(stream: Stream, lease: Lease) -> Selection:
    """What a selector with the newest weights, or with the exact ones, answers."""
    versions = stream.versions
    version = lease.version if lease.exact else versions.published
    fast_version = lease.fast_version if lease.exact else max(version, versions.fast_published)
    return dataclasses.replace(answer_all(lease, version=version), fast_version=fast_version)


def fast_staleness(batches: list[TrainBatch]) -> list[list[int]]:
    return [
        sorted(set((batch.step - batch.fast_version).tolist()))
        for batch in batches
        if batch.fast_version is not None
    ]


def staleness(batches: list[TrainBatch]) -> list[list[int]]:
    return [sorted(set((batch.step - batch.version).tolist())) for batch in batches]


def test_lockstep_staleness_is_exactly_zero() -> None:
    _, batches = drive(small(mode="lockstep", train__steps=0), steps=20)
    assert staleness(batches) == [[0]] * 20


def test_fixed_lag_staleness_is_exactly_the_lag() -> None:
    _, batches = drive(small(mode="fixed-lag", sync__lag=3, train__steps=0), steps=12)
    assert staleness(batches) == [[0], [1], [2]] + [[3]] * 9


def test_fixed_lag_with_an_interval_adds_the_age_of_the_last_publish() -> None:
    _, batches = drive(small(mode="fixed-lag", sync__lag=1, sync__interval=4, train__steps=0), steps=10)
    assert staleness(batches) == [[0], [1], [2], [3], [4], [1], [2], [3], [4], [1]]


def test_fixed_lag_scores_with_fast_parts_of_exactly_the_lag_and_a_whole_of_the_interval() -> None:
    _, batches = drive(small(mode="fixed-lag", sync__lag=1, sync__interval=4, train__steps=0), steps=10)
    assert staleness(batches) == [[0], [1], [2], [3], [4], [1], [2], [3], [4], [1]]
    assert fast_staleness(batches) == [[0], *[[1]] * 9]


def test_fast_parts_are_never_older_than_the_whole_whatever_the_two_intervals() -> None:
    config = small(mode="fixed-lag", sync__lag=0, sync__interval=4, sync__fast_interval=3, train__steps=0)
    _, batches = drive(config, steps=13)
    assert fast_staleness(batches) == [[0], [1], [2], [0], [0], [1], [0], [1], [0], [0], [1], [2], [0]]


def test_without_an_interval_of_their_own_the_fast_parts_are_as_old_as_the_whole() -> None:
    config = small(mode="fixed-lag", sync__lag=1, sync__interval=4, sync__fast_interval=0, train__steps=0)
    _, batches = drive(config, steps=10)
    assert fast_staleness(batches) == staleness(batches)


@pytest.mark.parametrize("policy", ["spread", "topk", "sb"])
def test_under_a_clock_leases_do_not_depend_on_how_fast_anybody_is(policy: str) -> None:
    config = small(mode="fixed-lag", sync__lag=1, train__steps=0, selection__policy=policy)

    def first_lease(step_s: float | None, rate: float | None) -> Lease:
        stream, peers = Stream(config, 600), [Peer(name, "cpu", is_ready=True) for name in "ab"]
        stream.versions.offer(Part.WHOLE, 0)
        stream.step_s, peers[0].rate = step_s, rate
        return stream.grant(peers)[0][1]

    # Of two selectors both are measured; so slow that a lease without a clock would be a pass.
    slow, unknown = first_lease(0.01, 10.0), first_lease(None, None)
    assert (slow.start, slow.stop, slow.enough) == (unknown.start, unknown.stop, unknown.enough)


def test_a_batch_waits_for_the_fast_parts_that_score_it() -> None:
    stream = Stream(small(mode="fixed-lag", sync__lag=0, sync__interval=4, train__steps=0), 600)
    stream.versions.offer(Part.WHOLE, 0)
    stream.versions.offer(Part.FAST, 0)
    peer = Peer("a", "cpu", is_ready=True)
    while not stream.ready:
        for _, lease in stream.grant([peer]):
            stream.accept(answer_of(stream, lease))
    stream.ready.popleft()
    stream.start()
    stream.finish_step()
    assert stream.grant([peer]) == []
    assert stream.is_quiet
    stream.versions.offer(Part.FAST, 1)
    assert not stream.is_quiet
    ((_, lease),) = stream.grant([peer])
    assert (lease.version, lease.fast_version, lease.exact) == (0, 1, True)
    assert "fast parts of version 0, not 1 to 1" in stream.accept(
        dataclasses.replace(answer_of(stream, lease), fast_version=0)
    )


def test_pipelined_fast_parts_stay_within_depth_steps() -> None:
    config = small(sync__depth=2, sync__interval=8, train__steps=0, train__epochs=20.0)
    _, batches = drive(config, steps=60)
    assert max(max(values) for values in staleness(batches)) > 2
    assert max(max(values) for values in fast_staleness(batches)) <= 2


def test_who_pulls_is_not_made_to_wait_for_newer_fast_parts() -> None:
    stream = Stream(small(sync__interval=8, train__steps=0), 600)
    stream.versions.offer(Part.WHOLE, 8)
    stream.versions.offer(Part.FAST, 11)
    near, far = Peer("a", "cpu", is_ready=True), Peer("b", "cpu", is_ready=True, pulls_weights=True)
    leases = {peer.name: lease for peer, lease in stream.grant([near, far])}
    assert (leases["a"].version, leases["a"].fast_version) == (8, 11)
    assert (leases["b"].version, leases["b"].fast_version) == (0, 0)


@pytest.mark.parametrize(("depth", "interval"), [(1, 1), (2, 1), (2, 8), (3, 1), (4, 3)])
def test_pipelined_staleness_stays_within_depth_and_interval(depth: int, interval: int) -> None:
    config = small(sync__depth=depth, sync__interval=interval, train__steps=0, train__epochs=20.0)
    _, batches = drive(config, steps=60)
    assert len(batches) == 60
    assert max(max(values) for values in staleness(batches)) <= depth + interval - 1


def test_pipelined_at_depth_two_is_about_one_step_late() -> None:
    _, batches = drive(small(train__steps=0, train__epochs=20.0, train__batch_size=64), steps=60)
    assert np.mean([(batch.step - batch.version).mean() for batch in batches]) < 1.5


def test_every_batch_is_whole_and_every_candidate_considered_once() -> None:
    stream, batches = drive(small(train__steps=0, train__epochs=3.0), steps=10_000)
    assert {len(batch.example_ids) for batch in batches} == {16}
    assert stream.ledger.num_considered == 1800
    assert stream.yielded.num_kept == len(batches) * 16 + stream.leftover
    pairs = [
        (int(epoch), int(i))
        for batch in batches
        for epoch, i in zip(batch.epochs, batch.example_ids, strict=True)
    ]
    assert len(pairs) == len(set(pairs))
    assert stream.ledger.num_selected >= stream.ledger.num_trained > 0


def test_scores_stay_with_the_examples_that_were_scored() -> None:
    config = small(train__steps=0, train__epochs=2.0)
    stream = Stream(config, 600)
    stream.versions.offer(Part.WHOLE, 0)
    ((_, lease),) = stream.grant([Peer("a", "cpu", is_ready=True)])
    stream.accept(answer_all(lease))
    ids = stream.order.ids(0, lease.start, lease.stop)
    batch = stream.ready[0]
    assert [ids.tolist().index(i) for i in batch.example_ids] == batch.scores.astype(int).tolist()


def test_two_selectors_share_the_leases() -> None:
    config = small(train__steps=0, train__epochs=2.0)
    stream = Stream(config, 600)
    stream.versions.offer(Part.WHOLE, 0)
    granted = stream.grant([Peer("a", "cpu", is_ready=True), Peer("b", "cpu", is_ready=True)])
    assert [peer.name for peer, _ in granted] == ["a", "b"]
    assert granted[0][1].stop == granted[1][1].start
    assert abs(granted[0][1].num_candidates - granted[1][1].num_candidates) <= 3


def test_the_first_lease_of_a_selector_carries_the_history() -> None:
    config = small(train__steps=0, selection__history=8)
    stream, _ = drive(config, steps=3)
    peer = Peer("new", "cpu", is_ready=True)
    stream.start()
    (_, lease), *_ = stream.grant([peer])
    assert lease.history is not None
    assert np.array_equal(lease.history, stream.table.recent)
    assert not peer.needs_history


def test_a_selection_that_would_be_trained_too_late_is_refused_and_its_lease_granted_again() -> None:
    config = small(train__steps=0, train__epochs=9.0, sync__max_staleness=2)
    stream, _ = drive(config, steps=10)
    stream.start()
    ((_, lease),) = stream.grant([Peer("a", "cpu", is_ready=True)])
    stream.num_assembled += 3  # other selectors filled three batches meanwhile, and they were trained
    stream.num_started += 3
    stream.versions.offer(Part.WHOLE, 13)
    assert "the bound is 2" in stream.accept(answer_all(lease))
    ((_, again),) = stream.grant([Peer("a", "cpu", is_ready=True)])
    assert (again.epoch, again.start) == (lease.epoch, lease.start)
    assert again.lease_id != lease.lease_id


@pytest.mark.parametrize(("published", "batches"), [(8, 0), (9, 1), (10, 2)])
def test_while_the_newest_weights_are_late_no_more_is_leased_than_the_bound_lets_them_score(
    published: int, batches: int
) -> None:
    stream, _ = drive(small(train__steps=0, train__epochs=9.0, sync__max_staleness=2), steps=10)
    stream.start()
    # The eleventh batch trains, and the weights after ten or nine steps have not left the device yet.
    stream.versions.offered[Part.WHOLE] = published
    granted = stream.grant([Peer("a", "cpu", is_ready=True)])
    assert sum(lease.most for _, lease in granted) <= batches * stream.batch_size
    assert bool(granted) == bool(batches)
    stream.versions.offer(Part.WHOLE, 10)
    assert granted or stream.grant([Peer("a", "cpu", is_ready=True)])


@pytest.mark.parametrize("pulls_weights", [False, True])
@pytest.mark.parametrize("late_by", [1, 2, 3])
def test_weights_that_are_always_late_never_break_the_bound_and_never_stop_the_loop(
    late_by: int, pulls_weights: bool
) -> None:
    """A waiting loop publishes what is missing: so its last version is out when all batches are trained."""
    config = small(train__steps=0, train__epochs=9.0, sync__max_staleness=2)
    stream, trained = Stream(config, 600), list[TrainBatch]()
    peer = Peer("a", "cpu", is_ready=True, pulls_weights=pulls_weights)
    stream.versions.offer(Part.WHOLE, 0)
    while len(trained) < 30:
        is_waiting = stream.is_waiting = not stream.ready
        if not is_waiting:
            trained.append(stream.ready.popleft())
            stream.start()
        else:
            stream.versions.offer(Part.WHOLE, stream.steps_done)
        for _, lease in stream.grant([peer]):
            # The oldest weights that it may score with.
            assert stream.accept(answer_all(lease, version=lease.version)) == ""
        if not is_waiting:
            stream.finish_step()
            stream.versions.offer(Part.WHOLE, max(0, stream.steps_done - late_by))
    assert max(map(max, staleness(trained))) <= 2


def test_under_a_clock_a_selection_of_another_version_is_refused() -> None:
    stream = Stream(small(mode="lockstep"), 600)
    stream.versions.offer(Part.WHOLE, 0)
    ((_, lease),) = stream.grant([Peer("a", "cpu", is_ready=True)])
    assert "scored with version 7" in stream.accept(answer_all(lease, version=7))
    assert stream.ledger.num_expired == 1


def leases_of_a_run(config: Config) -> list[Lease]:
    stream, leases = Stream(config, 600), []
    stream.versions.offer(Part.WHOLE, 0)
    peer = Peer("a", "cpu", is_ready=True)
    while not stream.is_finished:
        for _, lease in stream.grant([peer]):
            leases.append(lease)
            stream.accept(answer_all(lease, keep_every=1 if lease.keep_all else 3))
        if stream.ready:
            stream.ready.popleft()
            stream.start()
            stream.finish_step()
            stream.versions.offer(Part.WHOLE, stream.steps_done)
    return leases


def test_warm_up_and_anneal_begin_and_end_at_whole_candidates() -> None:
    config = small(train__steps=0, train__epochs=2.0, selection__warmup=100, selection__anneal=0.25)
    places = {
        lease.epoch * 600 + place: lease.keep_all
        for lease in leases_of_a_run(config)
        for place in range(lease.start, lease.stop)
    }
    assert [place for place in range(1200) if places[place]] == [*range(100), *range(900, 1200)]


def test_warm_up_until_the_history_is_full() -> None:
    config = small(train__steps=0, train__epochs=1.0, selection__warmup=-1, selection__history=64)
    places = {
        place: lease.keep_all for lease in leases_of_a_run(config) for place in range(lease.start, lease.stop)
    }
    assert [place for place in range(600) if places[place]] == [*range(64)]


def test_a_restored_stream_goes_on_where_the_saved_one_was() -> None:
    config = small(train__steps=0, train__epochs=9.0)
    stream, _ = drive(config, steps=7)
    waiting = [batch.example_ids.tolist() for batch in stream.ready]
    again = Stream(config, 600)
    again.restore(stream.state())
    assert [batch.example_ids.tolist() for batch in again.ready][: len(waiting)] == waiting
    assert again.ledger.next_place == stream.ledger.next_place
    assert np.array_equal(again.table.recent, stream.table.recent)


def test_the_clock_names_the_version_of_each_batch() -> None:
    assert [credit.clock_version(batch, lag=1, interval=4) for batch in range(10)] == [
        0,
        0,
        0,
        0,
        0,
        4,
        4,
        4,
        4,
        8,
    ]
    assert [credit.clock_version(batch, lag=0, interval=1) for batch in range(4)] == [0, 1, 2, 3]


def test_nothing_is_leased_while_enough_is_on_its_way() -> None:
    def lease(on_hand: int, expected: float) -> int:
        return credit.kept_to_lease(
            batch_size=128, depth=2, on_hand=on_hand, expected=expected, is_waiting=False
        )

    assert lease(0, 0.0) == 128
    assert lease(0, 128.0) == 0
    assert lease(140, 0.0) == 0
    assert lease(100, 0.0) > 0  # the next batch would be short


def test_a_stream_that_keeps_nothing_any_more_is_an_error_not_a_hang() -> None:
    stream = Stream(small(train__steps=0, train__seconds=60.0), 600)
    stream.versions.offer(Part.WHOLE, 0)
    peer = Peer("a", "cpu", is_ready=True)
    nothing = np.empty(0, np.int32)

    def starve() -> None:
        while True:
            for _, lease in stream.grant([peer]):
                scores = np.full(lease.num_candidates, np.nan, np.float32)
                stream.accept(
                    Selection(lease.lease_id, 0, scores, nothing, np.zeros(len(scores), np.float32))
                )

    with pytest.raises(StarvedError, match="scores are not finite"):
        starve()


def test_an_answer_of_a_version_that_was_never_published_is_refused() -> None:
    stream = Stream(small(train__steps=0), 600)
    stream.versions.offer(Part.WHOLE, 0)
    ((_, lease),) = stream.grant([Peer("a", "cpu", is_ready=True)])
    assert "scored with version" in stream.accept(answer_all(lease, version=2**40))
    assert stream.ledger.num_expired == 1


@pytest.mark.parametrize("misfit", ["too long", "nothing considered", "too many kept"])
def test_an_answer_that_does_not_fit_gives_its_candidates_back(misfit: str) -> None:
    """One liar beside an honest selector, in a run that waits: each epoch still comes to its end."""
    stream = Stream(small(train__steps=0, train__epochs=2.0, selection__late="wait"), 600)
    stream.versions.offer(Part.WHOLE, 0)
    liar, honest = Peer("liar", "cpu", is_ready=True), Peer("honest", "cpu", is_ready=True)
    ((_, lease),) = stream.grant([liar])
    assert stream.accept(_misfit(lease, misfit)) == "does not fit the lease"
    while not stream.is_finished:
        stream.is_waiting = not stream.ready
        granted = stream.grant([honest])
        for _, lease in granted:
            assert stream.accept(answer_all(lease)) == ""
        assert granted or stream.ready, "nothing is out, and nothing is left to train"
        if stream.ready:
            stream.ready.popleft()
            stream.start()
            stream.finish_step()
            stream.versions.offer(Part.WHOLE, stream.steps_done)
    assert (stream.ledger.num_considered, stream.ledger.num_expired) == (1200, 1)


def _misfit(lease: Lease, misfit: str) -> Selection:
    num = {"too long": lease.num_candidates + 1, "nothing considered": 0}.get(misfit, lease.num_candidates)
    num_kept = lease.most + 1 if misfit == "too many kept" else 0
    chances = np.ones(num, np.float32)
    return Selection(lease.lease_id, 0, chances, np.arange(num_kept, dtype=np.int32), chances)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("num_peers", [1, 2, 3, 5])
def test_a_waiting_loop_with_an_idle_selector_always_leads_to_a_lease(depth: int, num_peers: int) -> None:
    stream = Stream(small(train__steps=0, train__epochs=40.0, sync__depth=depth), 600)
    stream.versions.offer(Part.WHOLE, 0)
    peers = [Peer(str(k), "cpu", is_ready=True) for k in range(num_peers)]
    out: list[Lease] = []
    for turn in range(400):
        stream.is_waiting = not stream.ready
        out += [lease for _, lease in stream.grant(peers)]
        assert stream.ready or out
        if out and (turn % 3 or not stream.ready):
            stream.accept(answer_all(out.pop(turn % len(out)), keep_every=2 + turn % 5))
        if stream.ready:
            stream.ready.popleft()
            stream.start()
            stream.finish_step()
            stream.versions.offer(Part.WHOLE, stream.steps_done)


def test_a_slow_selector_does_not_hold_up_a_fast_one() -> None:
    stream = Stream(small(train__steps=0, train__epochs=40.0), 600)
    stream.versions.offer(Part.WHOLE, 0)
    fast, slow = Peer("fast", "cpu", is_ready=True), Peer("slow", "cpu", is_ready=True)
    for _ in range(20):
        stream.is_waiting = not stream.ready
        for peer, lease in stream.grant([fast, slow]):
            if peer is fast:
                stream.accept(answer_all(lease))
        if stream.ready:
            stream.ready.popleft()
            stream.start()
            stream.finish_step()
            stream.versions.offer(Part.WHOLE, stream.steps_done)
    assert stream.steps_done >= 8
