"""A loop of the user's own: what it may do, what is refused from its own line, and what nothing may lose."""

import logging
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.own_loops import LINK, pair_losses, selected, small_net, take_steps, vectors
from support.runs import wait_for
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

import sbpipe
from sbpipe.config import Config
from sbpipe.errors import ConfigError, DataError, DeviceError, ModelError, RunDirError
from sbpipe.ownloop import session
from sbpipe.ownloop.handed import Handed, LoopError
from sbpipe.ownloop.keeper import Keeper
from sbpipe.ownloop.loader import SelectedLoader
from sbpipe.trainer.step_outcome import DivergedError
from sbpipe.weights.manifest import digest


class Numbered(nn.Module):
    """A net that is only there to be trained; the loss of an example is its number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.0 * self.weight


def numbers(num_examples: int = 200) -> TensorDataset:
    return TensorDataset(torch.arange(num_examples, dtype=torch.float32))


def number_losses(model: Any, batch: Any) -> torch.Tensor:
    return model(batch[0])  # type: ignore[no-any-return]


def spied(loader: SelectedLoader) -> list[tuple[list[int], list[int]]]:
    """Every train batch from now on: its example ids, and the losses that were taken for them."""
    seen: list[tuple[list[int], list[int]]] = []
    session = loader._open().session
    take = session.engine.take_losses

    def noted(batch: Any, losses: torch.Tensor, targets: torch.Tensor) -> Any:
        seen.append((batch.example_ids.tolist(), losses.int().tolist()))
        return take(batch, losses, targets)

    session.engine.take_losses = noted  # type: ignore[method-assign]
    return seen


# --- what it may do -------------------------------------------------------------------------------


def test_a_loop_learns_and_leaves_a_summary_with_a_verdict(tmp_path: Path, capsys: Any) -> None:
    loader, optimizer = selected(vectors(), small_net(), tmp_path / "run")
    losses = take_steps(loader, optimizer, pair_losses, 60)
    summary = loader.close()
    assert np.mean(losses[-10:]) < np.mean(losses[:10])
    assert summary["steps"] == 60
    assert (tmp_path / "run" / "summary.json").exists()
    assert "fidelity" in capsys.readouterr().err


def test_selectors_are_told_which_device_the_loop_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    class Noted(Keeper):
        def __init__(self, config: Config, path: Path, count: int, is_over: threading.Event) -> None:
            told.append(config.train.device)
            super().__init__(config, path, count, is_over)

    monkeypatch.setattr(session, "Keeper", Noted)
    loader, _ = selected(vectors(), small_net(), tmp_path / "run")
    loader._open()
    loader.close()
    assert told == [
        "cpu"
    ]  # `auto` would have kept the first accelerator free for a trainer that is not there


@pytest.mark.parametrize("fails", [False, True])
def test_a_tracker_sees_the_end_of_a_loop_and_ends_by_itself(tmp_path: Path, fails: bool) -> None:
    loader, optimizer = selected(
        vectors(), small_net(), tmp_path / "run", settings={"trackers.tensorboard": True}
    )
    take_steps(loader, optimizer, pair_losses, 2)
    (tracker,) = loader._open().session.keeper._trackers
    wait_for("the tracker follows the run", (tmp_path / "run" / "tensorboard").exists)
    if fails:
        loader.__exit__(ValueError, ValueError("no room"), None)  # type: ignore[arg-type]
    else:
        loader.close()
    assert tracker.code == 0


def test_a_pass_is_as_many_batches_as_the_examples_that_are_kept(tmp_path: Path) -> None:
    loader, optimizer = selected(vectors(500), small_net(), tmp_path / "run", keep=0.3)
    assert len(loader) == 5  # 150 of 500 in batches of 32
    with loader:
        assert len(take_steps(loader, optimizer, pair_losses, 5)) == 5


@pytest.mark.parametrize("ahead", [1, 2])
def test_losses_belong_to_their_batch_however_far_the_loop_fetches_ahead(ahead: int, tmp_path: Path) -> None:
    settings = {"selection.late": "fill", "selection.policy": "random"}
    loader, optimizer = selected(
        numbers(),
        Numbered(),
        tmp_path / "ahead",
        losses=number_losses,
        batch_size=8,
        mode="pipelined",
        selector=None,
        settings=settings,
    )
    with loader:
        seen, waiting = spied(loader), []
        for batch in loader:
            waiting.append(batch)
            if len(waiting) > ahead:
                loader.weigh(number_losses(loader.model, waiting.pop(0))).backward()
                optimizer.step()
        assert len(seen) > 2
        assert all(ids == losses for ids, losses in seen)


def test_the_gradient_of_four_parts_is_that_of_one_batch_four_times_as_large(tmp_path: Path) -> None:
    gradients = []
    for accumulate in (1, 4):
        model = small_net()
        loader, _ = selected(
            vectors(), model, tmp_path / str(accumulate), batch_size=64 // accumulate, accumulate=accumulate
        )
        with loader:
            batches = iter(loader)
            for _ in range(accumulate):
                (loader.weigh(pair_losses(model, next(batches))) / accumulate).backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])  # type: ignore[union-attr]
    for one, four in zip(*gradients, strict=True):
        assert torch.allclose(one, four, rtol=0, atol=1e-6)


def test_weights_are_those_that_weigh_weighs_with(tmp_path: Path) -> None:
    ends = []
    for name in ("weigh", "weights"):
        model = small_net()
        loader, optimizer = selected(
            vectors(),
            model,
            tmp_path / name,
            settings={"selection.policy": "steady", "selection.ramp": False},
        )
        with loader:
            for _ in range(3):
                for batch in loader:
                    losses = pair_losses(model, batch)
                    loss = (
                        loader.weigh(losses) if name == "weigh" else (loader.weights(losses) * losses).mean()
                    )
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        ends.append(digest(model))
    assert ends[0] == ends[1]


def test_a_batch_that_is_skipped_counts_as_trained(tmp_path: Path) -> None:
    loader, optimizer = selected(vectors(), small_net(), tmp_path / "run")
    with loader:
        batches = iter(loader)
        next(batches)
        loader.skip()
        loader.weigh(pair_losses(loader.model, next(batches))).backward()
        optimizer.step()
        assert loader.steps == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_batch_that_was_not_handed_out_cannot_be_skipped_on_any_rank(rank: int) -> None:
    with pytest.raises(LoopError, match="skip: no batch is out"):
        Handed(rank, 2).drop()


def test_a_step_that_a_gradient_scaler_leaves_out_publishes_nothing(tmp_path: Path) -> None:
    settings = {"selection.policy": "sb", "selection.late": "fill"}
    loader, optimizer = selected(
        vectors(), small_net(), tmp_path / "run", mode="pipelined", selector=None, settings=settings
    )
    with loader:
        batches = iter(loader)
        for is_left_out in (False, True, False):
            loader.weigh(pair_losses(loader.model, next(batches))).backward()
            if not is_left_out:
                optimizer.step()
        engine = loader._running("test").session.engine
        assert engine.stream.steps_done == 3
        assert engine.totals()["sync.published"] == 3  # the initial weights, and after two steps


def test_weights_of_an_average_can_be_what_selectors_score_with(tmp_path: Path) -> None:
    model = small_net()
    average = torch.optim.swa_utils.AveragedModel(model)
    loader, optimizer = selected(vectors(), model, tmp_path / "run", publish=average)
    with loader:
        take_steps(loader, optimizer, pair_losses, 3)
    with pytest.raises(ModelError, match="publish has other parameters than model"):
        selected(vectors(), model, tmp_path / "other", publish=nn.Linear(3, 3))[0].__iter__().__next__()


def test_a_compiled_model_trains_and_its_own_weights_are_published(tmp_path: Path) -> None:
    model = small_net()
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    settings = {"mode": "inline", **LINK}
    data = DataLoader(vectors(), 32)
    loader = sbpipe.select(
        data, compiled, optimizer, losses=pair_losses, keep=0.25, run_dir=tmp_path / "run", settings=settings
    )
    assert loader.model is model
    with loader:
        for batch in loader:
            loader.weigh(pair_losses(compiled, batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert loader.close()["fidelity.spearman"] > 0.9


@pytest.mark.parametrize("is_scaled", [False, True])
def test_wrong_labels_are_passed_over_where_the_losses_are_cross_entropy(
    is_scaled: bool, tmp_path: Path
) -> None:
    inputs, targets = vectors(16_384, num_classes=10).tensors
    generator = torch.Generator().manual_seed(1)
    others = (targets + torch.randint(1, 10, targets.shape, generator=generator)) % 10
    is_wrong = torch.rand(len(targets), generator=generator) < 0.4
    mislabelled = TensorDataset(inputs, torch.where(is_wrong, others, targets))

    def losses(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        return pair_losses(model, batch) * (2.0 if is_scaled else 1.0)

    loader, optimizer = selected(
        mislabelled, small_net(num_classes=10), tmp_path / "run", losses=losses, batch_size=128
    )
    take_steps(loader, optimizer, losses, 90)
    summary = loader.close()
    assert (summary["selection.passed_over"] > 500) == (not is_scaled)
    assert (summary["selection.label_doubt"] is not None) == (not is_scaled)
    assert (summary["worth.ess"] is not None) == (not is_scaled)


# --- state ----------------------------------------------------------------------------------------


def test_what_was_handed_out_and_not_trained_comes_first_after_a_resume(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {
        "losses": number_losses,
        "batch_size": 8,
        "mode": "pipelined",
        "selector": None,
        "settings": {"selection.policy": "full", "selection.late": "fill"},
    }
    loader, optimizer = selected(numbers(80), Numbered(), tmp_path / "first", keep=1.0, **arguments)
    trained: Counter[int] = Counter()
    with loader:
        batches = iter(loader)
        held = [next(batches), next(batches), next(batches)]
        for batch in held[:1]:
            loader.weigh(number_losses(loader.model, batch)).backward()
            optimizer.step()
            trained.update(batch[0].int().tolist())
        state = loader.state_dict()
    torch.save(state, tmp_path / "checkpoint.pt")
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    loader, optimizer = selected(numbers(80), Numbered(), tmp_path / "second", keep=1.0, **arguments)
    loader.load_state_dict(state)
    with loader:
        again = 0
        for batch in loader:
            again += 1
            loader.weigh(number_losses(loader.model, batch)).backward()
            optimizer.step()
            trained.update(batch[0].int().tolist())
    assert again == len(loader) - 1  # the rest of the pass
    assert trained == Counter(range(80))


def test_a_new_pass_hands_out_again_what_the_last_one_left(tmp_path: Path) -> None:
    loader, _ = selected(numbers(), Numbered(), tmp_path / "run", losses=number_losses, batch_size=8)
    with loader:
        left = next(iter(loader))
        assert torch.equal(left[0], next(iter(loader))[0])


def test_a_state_of_other_settings_is_refused(tmp_path: Path) -> None:
    loader, _ = selected(vectors(), small_net(), tmp_path / "run")
    with loader:
        next(iter(loader))
        state = loader.state_dict()
    other, _ = selected(vectors(), small_net(), tmp_path / "other", keep=0.5)
    with pytest.raises(LoopError, match="other settings"):
        other.load_state_dict(state)


def test_a_state_that_is_none_of_a_loader_is_refused(tmp_path: Path) -> None:
    loader, _ = selected(vectors(), small_net(), tmp_path / "run")
    with pytest.raises(LoopError, match=r"the state has no 'position'.*what this loader's state_dict\(\)"):
        loader.load_state_dict({"sbpipe": {}})
    with pytest.raises(LoopError, match=r"the state has no 'sbpipe'.*not the checkpoint that holds it"):
        loader.load_state_dict({"model": {}})


@pytest.mark.parametrize("skips", [False, True])
def test_a_publish_that_fails_ends_the_run(skips: bool, tmp_path: Path) -> None:
    loader, optimizer = selected(vectors(), small_net(), tmp_path / "run")
    take_steps(loader, optimizer, pair_losses, 2)

    def fail(*_: Any) -> None:
        raise DeviceError("the snapshot did not leave the device")

    loader._open().session.engine.publisher.publish_due = fail  # type: ignore[method-assign]
    batch = next(iter(loader))
    if not skips:
        loader.weigh(pair_losses(loader.model, batch)).backward()
    with pytest.raises(DeviceError, match="did not leave the device"):
        loader.skip() if skips else optimizer.step()
    events = (tmp_path / "run" / "events-trainer.jsonl").read_text().splitlines()
    assert '"kind":"failed"' in events[-1]
    with pytest.raises(LoopError, match="the run has ended: the snapshot did not leave the device"):
        next(iter(loader))


def test_a_loop_that_has_diverged_goes_on_from_an_earlier_state(tmp_path: Path) -> None:
    loader, optimizer = selected(vectors(), small_net(), tmp_path / "run")
    take_steps(loader, optimizer, pair_losses, 2)
    state = loader.state_dict()
    with pytest.raises(DivergedError, match="the training loss is nan at step 2"):
        take_steps(loader, optimizer, lambda model, batch: torch.nan * pair_losses(model, batch), 1)
    for ask in (lambda: next(iter(loader)), loader.skip, loader.state_dict):
        with pytest.raises(LoopError, match=r"the run has ended: the run has diverged: .*load_state_dict"):
            ask()
    loader.load_state_dict(state)
    take_steps(loader, optimizer, pair_losses, 2)
    summary = loader.close()
    assert (summary["status"], summary["steps"]) == ("finished", 4)


# --- refused, from the user's own line --------------------------------------------------------------


def mean_losses(model: Any, batch: Any) -> torch.Tensor:
    return pair_losses(model, batch).mean()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(9))


def test_losses_of_the_wrong_shape_are_refused_before_the_first_step(tmp_path: Path) -> None:
    loader, _ = selected(vectors(), small_net(), tmp_path / "run", losses=mean_losses)
    with pytest.raises(ModelError, match=r"got shape \[\], want shape \[32\].*reduction='none'"):
        next(iter(loader))
    assert not (tmp_path / "run").exists()


def test_a_loss_in_the_loop_of_another_shape_is_refused(tmp_path: Path) -> None:
    loader, _ = selected(vectors(), small_net(), tmp_path / "run")
    with loader:
        batch = next(iter(loader))
        with pytest.raises(ModelError, match=r"got losses of shape \[\], want shape \[32\]"):
            loader.weigh(mean_losses(loader.model, batch))


def test_weighing_twice_is_refused(tmp_path: Path) -> None:
    loader, _ = selected(vectors(), small_net(), tmp_path / "run")
    with loader:
        losses = pair_losses(loader.model, next(iter(loader)))
        loader.weigh(losses)
        with pytest.raises(LoopError, match="once for each batch"):
            loader.weigh(losses)


def test_no_optimizer_is_refused_at_the_first_loss(tmp_path: Path) -> None:
    data = DataLoader(vectors(), 32)
    loader = sbpipe.select(
        data, small_net(), losses=pair_losses, run_dir=tmp_path / "run", settings={"mode": "inline"}
    )
    with loader, pytest.raises(LoopError, match=r"loader.attach\(optimizer\)"):
        loader.weigh(pair_losses(loader.model, next(iter(loader))))


def test_fetching_ahead_is_refused_where_a_clock_forbids_it(tmp_path: Path) -> None:
    loader, _ = selected(vectors(), small_net(), tmp_path / "run")
    with loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(LoopError, match="mode = 'inline': the next batch was asked for before"):
            next(batches)


def test_a_step_in_the_middle_of_a_train_batch_is_refused(tmp_path: Path) -> None:
    loader, optimizer = selected(vectors(), small_net(), tmp_path / "run", accumulate=2)
    with loader:
        loader.weigh(pair_losses(loader.model, next(iter(loader)))).backward()
        with pytest.raises(LoopError, match=r"after 1 of 2 batches.*accumulate=N"):
            optimizer.step()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (lambda: DataLoader(Stream(), 4), "Stream cannot be indexed"),
        (lambda: DataLoader(TensorDataset(torch.empty(0, 3)), 4), "the data set is empty"),
        (lambda: DataLoader(vectors(), batch_sampler=[[1, 2]]), "the loader has no batch_size"),
        (lambda: DataLoader(vectors(64), 128), "64 examples do not fill one optimizer step of 128"),
        (lambda: [1, 2, 3], "a list has no data set to select from"),
    ],
)
def test_data_that_cannot_be_selected_from_is_refused_at_once(data: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        sbpipe.select(data(), small_net(), losses=pair_losses)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"train.batch_size": 3}, "the loader's batch_size decides it"),
        ({"optim.lr": 3.0}, "it belongs to `sbpipe run`"),
        ({"mode": "data-parallel"}, "it has no selection"),
        ({"selection.polic": "sb"}, "selection.polic"),
    ],
)
def test_settings_that_are_not_a_loops_are_refused_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sbpipe.select(DataLoader(vectors(), 32), small_net(), losses=pair_losses, settings=settings)


class Locked(TensorDataset):
    """Examples behind what no other process can have."""

    def __init__(self) -> None:
        super().__init__(*vectors().tensors)
        self.lock = threading.Lock()


def test_a_job_that_cannot_be_sent_leaves_nothing_behind_and_trains_without_being_sent(
    tmp_path: Path,
) -> None:
    loader, _ = selected(Locked(), small_net(), tmp_path / "run", mode="pipelined", selector="cpu")
    with pytest.raises(DataError, match=r"the data set cannot be sent.*selector=None"):
        next(iter(loader))
    assert not (tmp_path / "run").exists()
    # With a selector that brings the job itself, nothing need be sent.
    loader, optimizer = selected(
        Locked(),
        small_net(),
        tmp_path / "run",
        mode="pipelined",
        selector=None,
        settings={"selection.late": "fill"},
    )
    with loader:
        assert len(take_steps(loader, optimizer, pair_losses, 3)) == 3


def test_a_sampler_that_is_not_used_is_told_of(caplog: Any) -> None:
    sampler = WeightedRandomSampler([1.0] * 512, 512)
    with caplog.at_level(logging.WARNING, "sbpipe"):
        sbpipe.select(DataLoader(vectors(), 32, sampler=sampler), small_net(), losses=pair_losses)
    assert "WeightedRandomSampler is not used" in caplog.text


def test_a_selector_on_a_device_that_is_not_here_is_refused_at_once() -> None:
    with pytest.raises(DeviceError, match="selector = 'cuda:77': no such device here"):
        sbpipe.select(DataLoader(vectors(64), 16), small_net(), losses=pair_losses, selector="cuda:77")


def test_an_optimizer_that_was_not_made_is_refused() -> None:
    with pytest.raises(ModelError, match=r"made of the model's parameters"):
        sbpipe.select(DataLoader(vectors(64), 16), small_net(), torch.optim.SGD, losses=pair_losses)  # type: ignore[arg-type]


def test_losses_that_cannot_be_called_so_are_told_how_they_are_called(tmp_path: Path) -> None:
    loader = sbpipe.select(
        DataLoader(vectors(64), 16),
        small_net(),
        losses=lambda batch: batch,
        run_dir=tmp_path / "run",
        selector=None,
    )  # type: ignore[arg-type]
    with pytest.raises(
        ModelError, match=r"losses\(model, batch\) raised TypeError: .*called with the model and"
    ):
        next(iter(loader))


# --- torchrun starts it again ---------------------------------------------------------------------


def test_ranks_that_may_be_started_again_name_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_MAX_RESTARTS": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"run_dir = None: is missing.*run_dir='runs/NAME'"):
        sbpipe.select(DataLoader(vectors(), 32), small_net(), losses=pair_losses)


def test_a_loop_of_the_same_launch_takes_the_place_of_the_one_that_was_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "job 7"}.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        loader, optimizer = selected(vectors(), small_net(), tmp_path / "run")
        take_steps(loader, optimizer, pair_losses, 2)
        loader.leave()  # between two batches: the run is not finished
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job 8")
    loader, _ = selected(vectors(), small_net(), tmp_path / "run")
    with pytest.raises(RunDirError, match="is not empty"):
        next(iter(loader))


@pytest.mark.parametrize("launch", ["job 8", "none"])
@pytest.mark.parametrize("is_finished", [False, True])
def test_a_loop_that_is_refused_here_is_refused_however_often_torchrun_starts_it_again(
    is_finished: bool, launch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, optimizer = selected(vectors(), small_net(), tmp_path / "run")
    take_steps(loader, optimizer, pair_losses, 2)
    loader.close() if is_finished else loader.leave()
    before = _contents(tmp_path / "run")
    place = {"RANK": "0", "WORLD_SIZE": "1", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": launch}
    for attempt in range(3):
        again = {
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            "TORCHELASTIC_ERROR_FILE": f"/tmp/none_x1/attempt_{attempt}/0/error.json",
        }
        for name, value in (place | again).items():
            monkeypatch.setenv(name, value)
        loader, _ = selected(vectors(), small_net(), tmp_path / "run")
        with pytest.raises(RunDirError, match="is not empty"):
            next(iter(loader))
    assert _contents(tmp_path / "run") == before


def test_a_finished_run_is_not_replaced_by_its_own_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "job 7"}.items():
        monkeypatch.setenv(name, value)
    loader, optimizer = selected(vectors(), small_net(), tmp_path / "run")
    take_steps(loader, optimizer, pair_losses, 2)
    loader.close()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    loader, _ = selected(vectors(), small_net(), tmp_path / "run")
    with pytest.raises(RunDirError, match="is not empty"):
        next(iter(loader))


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
