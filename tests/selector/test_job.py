"""The job of a user's own loop in a file: for this user alone, and only what can be taken along."""

import pickle
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from support.own_loops import pair_losses, small_net, vectors
from torch.utils.data import default_collate

from sbpipe.data.own_batches import OwnBatches, OwnData
from sbpipe.errors import DataError, UserError
from sbpipe.selector.job import OwnJob, read_job, write_job

CPU = torch.device("cpu")


class Locked:
    """A data set that holds what no other process can have."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: int) -> int:
        return place


def job_of(dataset: Any = None) -> OwnJob:
    return OwnJob(OwnData(dataset or vectors(32), default_collate), small_net(), pair_losses)


def test_a_job_comes_out_as_it_went_in_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    job, path = job_of(), tmp_path / "job.pkl"
    write_job(job, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = read_job(str(path))
    assert torch.equal(again.data.dataset.tensors[0], job.data.dataset.tensors[0])
    assert list(again.model.state_dict()) == list(job.model.state_dict())


def test_a_job_takes_the_place_of_what_stood_there_and_does_not_follow_it(tmp_path: Path) -> None:
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "job.pkl"
    elsewhere.write_text("years of work")
    elsewhere.chmod(0o666)
    path.symlink_to(elsewhere)
    write_job(job_of(), path)
    assert elsewhere.read_text() == "years of work"
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert not path.is_symlink()


def test_a_file_that_others_may_have_written_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "job.pkl"
    write_job(job_of(), path)
    path.chmod(0o640)
    with pytest.raises(UserError, match="is not this user's alone"):
        read_job(str(path))


def test_what_is_no_job_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.pkl"
    path.touch(0o600)
    path.write_bytes(pickle.dumps([]) + pickle.dumps({"not": "a job"}))
    with pytest.raises(UserError, match=r"is a dict. Make it a job with sbpipe\.job"):
        read_job(str(path))
    with pytest.raises(UserError, match="cannot be read"):
        read_job(str(tmp_path / "missing.pkl"))


def test_what_cannot_be_taken_along_is_named_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the data set cannot be sent.*lock"):
        write_job(job_of(Locked()), tmp_path / "job.pkl")
    assert not (tmp_path / "job.pkl").exists()


def test_the_probe_tells_jobs_apart_and_not_how_their_weights_began() -> None:
    def probe(job: OwnJob) -> str:
        batches = OwnBatches(job.data, seed=0, device=CPU)
        return job.fingerprints(batches, job.manifest("fp32"), CPU)["probe"]

    first, other = job_of(), job_of()
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.add_(1.0)
    before = {name: tensor.clone() for name, tensor in other.model.state_dict().items()}
    assert probe(first) == probe(other)
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.model.state_dict().items())
    assert probe(first) != probe(
        OwnJob(first.data, first.model, lambda model, batch: 2 * pair_losses(model, batch))
    )
