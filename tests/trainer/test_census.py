"""What a run tells of its examples."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.runs import events_of, small, train_inline

from sbpipe.records import Selection
from sbpipe.runs import read_run
from sbpipe.runs.names.files import EXAMPLES
from sbpipe.trainer.evaluation import are_classes
from sbpipe.trainer.record.census import Census, extremes
from sbpipe.trainer.record.thumbnails import thumbnails
from sbpipe.trainer.stream.scores import ScoreTable


def considered(table: ScoreTable, ids: list[int], kept: list[int], scores: list[float]) -> None:
    chances = np.full(len(ids), 0.5, np.float32)
    table.record(
        np.array(ids), Selection(0, 3, np.array(scores, np.float32), np.array(kept, np.int32), chances)
    )
    table.settle()


def test_classes_are_counted_since_the_last_event() -> None:
    table = ScoreTable(4, 10)
    census = Census(table, np.array([0, 0, 1, 1]), 2)
    considered(table, [0, 1, 2], [2], [0.1, 0.2, 0.3])
    first = census.take()
    assert (first["class_considered"], first["class_kept"]) == ([2, 1], [0, 1])
    considered(table, [3, 0], [0, 1], [0.4, 0.5])
    second = census.take()
    assert (second["class_considered"], second["class_kept"]) == ([1, 1], [1, 1])
    assert second["times_kept"] == [1, 3]


def test_extremes_are_the_ends_of_the_ranking() -> None:
    scores = np.array([3.0, np.nan, 1.0, 2.0], np.float32)
    found = extremes(scores, np.array([5, 5, 9, 0], np.int32), np.array([2, 4, 0, 0], np.int32))
    assert {name: ids.tolist() for name, ids in found.items()} == {
        "easiest": [2, 3, 0],
        "hardest": [0, 3, 2],
        "never_kept": [2],
    }


def test_thumbnails_use_the_whole_range_and_other_inputs_have_none() -> None:
    images = thumbnails(np.array([[[[-2.0, 0.0], [1.0, 2.0]]]], np.float32))
    assert images is not None
    assert images[0, :, :, 0].tolist() == [[0, 128], [191, 255]]
    assert thumbnails(np.zeros((4, 7), np.float32)) is None


def test_a_run_leaves_its_examples_and_what_it_thinks_of_them(run_path: Path) -> None:
    train_inline(small(mode="inline", eval__every=0.2), run_path)
    with np.load(run_path / EXAMPLES) as arrays:
        assert arrays["times_kept"].sum() >= 12 * 16
        assert (np.diff(arrays["hardest_scores"]) <= 0).all()
        assert arrays["easiest_images"].shape == (24, 32, 32, 3)
        assert arrays["easiest_scores"].max() <= arrays["hardest_scores"].min()
    last = events_of(run_path, "scores")[-1]
    assert np.diff(last["quantiles"]).min() >= 0
    assert sum(last["times_kept"][1:]) > 0


def test_shares_of_classes_come_from_targets_where_nothing_else_tells() -> None:
    census = Census(ScoreTable(2, 1), None, 3)
    assert census.class_counts(np.array([0, 1]), torch.tensor([2, 2])) == [0, 0, 2]
    assert census.class_counts(np.array([0, 1]), torch.tensor([0.5, 0.1])) == []


def test_a_resumed_run_does_not_tell_again_what_it_told(run_path: Path) -> None:
    config = small(mode="inline", eval__every=0.1, checkpoint__every=4)
    train_inline(config, run_path)
    before = events_of(run_path, "scores")
    (run_path / "summary.json").unlink()
    train_inline(config, run_path, resume=True)
    after = events_of(run_path, "scores")[len(before) :]
    assert sum(after[0]["class_considered"]) < sum(before[0]["class_considered"])


def test_a_resume_before_the_first_checkpoint_takes_everything_back(run_path: Path) -> None:
    config = small(mode="inline")
    train_inline(config, run_path)
    (run_path / "summary.json").unlink()
    for checkpoint in (run_path / "checkpoints").iterdir():
        checkpoint.unlink()
    train_inline(config, run_path, resume=True)
    assert [event["step"] for event in read_run(run_path).of("step")] == list(range(12))


def test_one_logit_is_no_class() -> None:
    targets = torch.tensor([0, 1, 1])
    assert not are_classes(torch.zeros(3, 1), targets, 2)
    assert are_classes(torch.zeros(3, 2), targets, 2)


@pytest.mark.parametrize("targets", [[0, 3], [0, -100], []])
def test_whole_numbers_that_are_no_classes_are_not_counted(targets: list[int]) -> None:
    census = Census(ScoreTable(2, 1), None, 3)
    assert census.class_counts(np.arange(len(targets)), torch.tensor(targets, dtype=torch.long)) == []
    unknown = Census(ScoreTable(2, 1), None, 0)
    assert unknown.class_counts(np.arange(2), torch.tensor([7, 2])) == []
