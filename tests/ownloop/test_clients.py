"""Loops of other make: each loss goes to its own example, and accumulated gradients are those of one batch.

The libraries are imported where they are used: they are slow to import, and most tests do without.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.clients import (
    ALONE,
    INLINE,
    Net,
    Numbered,
    Told,
    gradients_of,
    id_losses,
    own_folder,
    square_losses,
    told,
)
from torch.utils.data import DataLoader

import sbpipe
from sbpipe.errors import MissingExtra, ModelError
from sbpipe.ownloop.handed import LoopError
from sbpipe.ownloop.loader import SelectedLoader

__all__ = ["own_folder", "told"]
pytestmark = pytest.mark.filterwarnings("ignore")

Gradients = list[torch.Tensor]


def loader_of(
    model: Any,
    path: Path,
    losses: Any,
    *,
    batch_size: int = 8,
    accumulate: int = 1,
    settings: Any = INLINE,
    **arguments: Any,
) -> SelectedLoader:
    data = DataLoader(Numbered(), batch_size, shuffle=True)
    return sbpipe.select(
        data,
        model,
        losses=losses,
        keep=0.25,
        accumulate=accumulate,
        run_dir=path,
        settings=settings,
        **arguments,
    )


def plain(path: Path, losses: Any, batch_size: int, accumulate: int) -> Gradients:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    loader = loader_of(model, path, losses, batch_size=batch_size, accumulate=accumulate)
    with loader.attach(optimizer), gradients_of(optimizer) as gradients:
        for number, batch in enumerate(loader, start=1):
            (loader.weigh(losses(model, batch)) / accumulate).backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return gradients


def accelerate(path: Path, losses: Any, batch_size: int, accumulate: int) -> Gradients:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    net = Net()
    sgd = torch.optim.SGD(net.parameters(), 0.05)
    model, optimizer, data = accelerator.prepare(net, sgd, DataLoader(Numbered(), batch_size, shuffle=True))
    loader = sbpipe.select(
        data,
        model,
        optimizer,
        losses=losses,
        keep=0.25,
        accumulate=accumulate,
        run_dir=path,
        settings=INLINE,
    )
    with loader, gradients_of(sgd) as gradients:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loader.weigh(losses(model, batch)))
                optimizer.step()
                optimizer.zero_grad()
    return gradients


def huggingface(path: Path, losses: Any, batch_size: int, accumulate: int) -> Gradients:
    from support.hf_clients import trainer_of

    trainer = trainer_of(path, losses, batch_size=batch_size, accumulate=accumulate)
    with gradients_of(trainer.create_optimizer()) as gradients:
        trainer.train()
    return gradients


def lightning(path: Path, losses: Any, batch_size: int, accumulate: int) -> Gradients:
    from support.lightning_clients import Module, trainer_of

    module = Module(losses)
    loader = loader_of(module, path, losses, batch_size=batch_size, accumulate=accumulate)
    module.optimizer = torch.optim.SGD(module.parameters(), 0.05)
    with gradients_of(module.optimizer) as gradients:
        trainer_of(path, loader, max_epochs=1).fit(module, loader)
    return gradients


CLIENTS = (plain, accelerate, huggingface, lightning)
each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)


@each_client
def test_losses_are_told_of_their_own_examples(
    client: Callable[..., Gradients], told: Told, tmp_path: Path
) -> None:
    client(tmp_path / "run", id_losses, 8, 4)
    assert len(told.ids) == 2
    assert told.are_paired


@each_client
def test_gradients_over_four_batches_are_those_of_one_four_times_as_large(
    client: Callable[..., Gradients], tmp_path: Path
) -> None:
    four = client(tmp_path / "four", square_losses, 8, 4)
    one = client(tmp_path / "one", square_losses, 32, 1)
    assert len(four) == len(one) == 2
    for left, right in zip(four, one, strict=True):
        assert float(left.norm()) > 1e-3
        torch.testing.assert_close(left, right, rtol=0, atol=1e-6)


def one_ahead(loader: SelectedLoader) -> Iterator[Any]:
    """As accelerate draws from a loader of torch: the next batch is fetched before this one is given."""
    batches = iter(loader)
    held = next(batches)
    for batch in batches:
        yield held
        held = batch
    yield held


def test_losses_are_told_of_their_own_examples_where_batches_are_fetched_ahead(
    told: Told, tmp_path: Path
) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    loader = loader_of(model, tmp_path, id_losses, settings=ALONE, selector=None)
    with loader.attach(optimizer):
        for batch in one_ahead(loader):
            loader.weigh(id_losses(model, batch)).backward()
            optimizer.step()
    assert len(told.ids) == len(loader) == 8
    assert told.are_paired


# --- steps that do not come, or come late ---------------------------------------------------------


def scaled_loop(path: Path, settings: Any, **arguments: Any) -> tuple[int, int]:
    """Eight batches, of which the scaler skips the third; train batches done, and snapshots published."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    loader = loader_of(model, path, square_losses, settings={**settings, "sync.interval": 1}, **arguments)
    before = [each.clone() for each in model.parameters()]
    with loader.attach(optimizer):
        for number, batch in enumerate(loader, start=1):
            loss = loader.weigh(square_losses(model, batch))
            scaler.scale(loss * torch.inf if number == 3 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        summary = loader.close()
    assert all(torch.isfinite(each).all() for each in model.parameters())
    assert not torch.equal(before[0], next(model.parameters()))
    return summary["steps"], summary["sync.published"] + summary["sync.skipped"]


def test_a_step_that_the_gradient_scaler_skips_counts_and_publishes_nothing(tmp_path: Path) -> None:
    steps, published = scaled_loop(tmp_path, ALONE, selector=None)
    assert (steps, published) == (8, 1 + 7)


def test_a_skipped_step_does_not_stop_a_loop_under_a_clock(tmp_path: Path) -> None:
    steps, _ = scaled_loop(tmp_path, INLINE)
    assert steps == 8


def test_under_a_clock_a_step_after_the_next_batch_is_refused(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    loader = loader_of(model, tmp_path, square_losses).attach(optimizer)
    batches = iter(loader)
    loader.weigh(square_losses(model, next(batches))).backward()
    next(batches)
    with pytest.raises(LoopError, match="before the optimizer step"):
        optimizer.step()
    loader.close()


# --- what is refused ------------------------------------------------------------------------------


def test_losses_that_are_a_method_of_the_model_are_refused(tmp_path: Path) -> None:
    class Judging(Net):
        def judge(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return square_losses(self, batch)

    model = Judging()
    with pytest.raises(ModelError, match=r"Judging\.judge"):
        loader_of(model, tmp_path, model.judge)
    losses = Judging.judge(model, next(iter(DataLoader(Numbered(), 4))))
    assert np.isfinite(losses.detach().numpy()).all()
    loader_of(model, tmp_path, Judging.judge)


def test_losses_that_are_a_method_of_the_trainer_are_refused(tmp_path: Path) -> None:
    from support.hf_clients import trainer_of

    from sbpipe.hf import SelectingTrainer

    with pytest.raises(ModelError, match="none are given"):
        trainer_of(tmp_path, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SelectingTrainer, "losses", lambda self, model, batch: None)
        with pytest.raises(ModelError, match="@staticmethod"):
            trainer_of(tmp_path, None)
        patch.setattr(SelectingTrainer, "losses", staticmethod(square_losses))
        assert trainer_of(tmp_path, None).losses is square_losses


def test_evaluations_in_between_are_not_taken_for_training(told: Told, tmp_path: Path) -> None:
    from support.hf_clients import trainer_of

    trainer = trainer_of(tmp_path, square_losses, eval_strategy="steps", eval_steps=3)
    trainer.train()
    assert trainer.state.global_step == len(told.ids) == 8
    assert sum("eval_loss" in entry for entry in trainer.state.log_history) == 3


def test_lightning_and_selection_must_accumulate_alike(tmp_path: Path) -> None:
    from support.lightning_clients import Module, trainer_of

    module = Module(square_losses)
    loader = loader_of(module, tmp_path, square_losses, accumulate=2)
    trainer = trainer_of(tmp_path, loader, max_epochs=1)
    trainer.accumulate_grad_batches = 4
    with pytest.raises(LoopError, match="accumulate_grad_batches=4"):
        trainer.fit(module, loader)


@pytest.mark.parametrize(("library", "extra"), [("transformers", "hf"), ("pytorch_lightning", "lightning")])
def test_a_library_that_is_missing_is_told_with_the_extra_that_brings_it(
    library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, "lightning", raising=False)
    monkeypatch.delitem(sys.modules, f"sbpipe.{extra}", raising=False)
    with pytest.raises(MissingExtra, match=rf"sbpipe\[{extra}\]"):
        importlib.import_module(f"sbpipe.{extra}")
