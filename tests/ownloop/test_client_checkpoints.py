"""Stopped in the middle of an epoch and resumed from the framework's own checkpoint: as if never stopped."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.clients import INLINE, Net, Numbered, ledger_in, own_folder, square_losses, weights_of
from support.own_loops import LINK
from torch.utils.data import DataLoader

import sbpipe
from sbpipe.ownloop.loader import SelectedLoader

__all__ = ["own_folder"]
pytestmark = pytest.mark.filterwarnings("ignore")

EPOCH = 8
"""Steps of one pass: 256 examples, of which a quarter is kept, in batches of 8."""


class Stopped(Exception):
    """The power is gone."""


def assert_every_candidate_counts_once(state: dict[str, Any]) -> None:
    considered, line = ledger_in(state)
    assert considered == line > 0


def loader_of(model: Any, path: Path, settings: Any = INLINE) -> SelectedLoader:
    data = DataLoader(Numbered(), 8, shuffle=True)
    return sbpipe.select(data, model, losses=square_losses, keep=0.25, run_dir=path, settings=settings)


# --- torch.save -----------------------------------------------------------------------------------


def plain(path: Path, settings: Any, *, first: int = 0, last: int) -> torch.Tensor:
    """Train from one step to another; the weights."""
    model, file = Net(), path / "checkpoint.pt"
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    with loader_of(model, path / f"from-{first}", settings).attach(optimizer) as loader:
        if first:
            saved = torch.load(file, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
        done = first
        while done < last:
            for batch in loader:
                loss = loader.weigh(square_losses(model, batch))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                done += 1
                if done == last:
                    break
        saved = {"model": model, "optimizer": optimizer, "loader": loader}
        torch.save({name: value.state_dict() for name, value in saved.items()}, file)
    assert_every_candidate_counts_once(torch.load(file, weights_only=True)["loader"])
    return weights_of(model)


def test_a_plain_loop_in_lockstep_with_a_selector_process_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = plain(tmp_path / "whole", INLINE, last=13)
    lockstep = {"mode": "lockstep", **LINK}
    plain(tmp_path / "halves", lockstep, last=5)
    assert torch.equal(plain(tmp_path / "halves", lockstep, first=5, last=13), whole)


# --- accelerate -----------------------------------------------------------------------------------


def accelerated(path: Path, stop_at: int | None = None, *, resumes: bool = False) -> torch.Tensor:
    """One pass; the weights."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = Net()
    sgd = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    # The other order: what is selected from goes through `prepare` as it is.
    model, optimizer, loader = accelerator.prepare(net, sgd, loader_of(net, path / f"{resumes}").attach(sgd))
    accelerator.register_for_checkpointing(loader)
    with loader:
        if resumes:
            accelerator.load_state(str(path / "checkpoint"))
        for number, batch in enumerate(loader, start=1):
            accelerator.backward(loader.weigh(square_losses(model, batch)))
            optimizer.step()
            optimizer.zero_grad()
            if number == stop_at:
                accelerator.save_state(str(path / "checkpoint"))
                break
        assert_every_candidate_counts_once(loader.state_dict())
    return weights_of(net)


def test_accelerate_saves_and_loads_a_loader_that_is_registered(tmp_path: Path) -> None:
    whole = accelerated(tmp_path / "whole")
    accelerated(tmp_path / "halves", stop_at=3)
    assert torch.equal(accelerated(tmp_path / "halves", resumes=True), whole)


# --- transformers ---------------------------------------------------------------------------------


def test_huggingface_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    from support.hf_clients import trainer_of
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 5:
                raise Stopped

    often = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    whole = trainer_of(tmp_path / "whole", square_losses, **often)
    whole.train()
    broken = trainer_of(tmp_path / "halves", square_losses, callbacks=[Stop()], **often)
    with pytest.raises(Stopped):
        broken.train()
    resumed = trainer_of(tmp_path / "halves", square_losses, **often)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 2 * EPOCH
    assert torch.equal(weights_of(resumed.model), weights_of(whole.model))
    last = tmp_path / "halves" / "out" / f"checkpoint-{2 * EPOCH - 1}" / "sbpipe.pt"
    assert_every_candidate_counts_once(torch.load(last, weights_only=True))


def test_huggingface_leaves_nothing_running_after_an_error_and_may_train_again(tmp_path: Path) -> None:
    from support.hf_clients import trainer_of
    from transformers import TrainerCallback

    class StopOnce(TrainerCallback):
        is_done = False

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not self.is_done:
                self.is_done = True
                raise Stopped

    trainer = trainer_of(tmp_path, square_losses, callbacks=[StopOnce()])
    with pytest.raises(Stopped):
        trainer.train()
    assert isinstance(trainer.get_train_dataloader(), DataLoader)
    trainer.train()
    assert trainer.state.global_step == EPOCH


# --- Lightning ------------------------------------------------------------------------------------


def test_lightning_goes_on_from_its_own_checkpoints(tmp_path: Path) -> None:
    from pytorch_lightning import Callback
    from pytorch_lightning.callbacks import ModelCheckpoint
    from support.lightning_clients import Module, trainer_of

    class Stop(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 5:
                raise Stopped

    def fit(name: str, *callbacks: Callback, ckpt: Path | None = None) -> torch.Tensor:
        module = Module(square_losses)
        loader = loader_of(module, tmp_path / name)
        trainer = trainer_of(tmp_path / name, loader, list(callbacks), max_epochs=2)
        trainer.fit(module, loader, ckpt_path=ckpt and str(ckpt))
        assert trainer.global_step == 2 * EPOCH
        trainer.save_checkpoint(tmp_path / "end.ckpt")
        assert_every_candidate_counts_once(torch.load(tmp_path / "end.ckpt", weights_only=True)["sbpipe"])
        return weights_of(module)

    folder = tmp_path / "saved"
    every_third = ModelCheckpoint(folder, "{step}", every_n_train_steps=3, save_top_k=-1)
    with pytest.raises(Stopped):
        fit("broken", every_third, Stop())
    every_epoch = ModelCheckpoint(folder, "{epoch}", save_top_k=-1)
    whole = fit("whole", every_epoch)
    assert torch.equal(fit("mid-epoch", ckpt=folder / "step=3.ckpt"), whole)
    assert torch.equal(fit("next-epoch", ckpt=folder / "epoch=0.ckpt"), whole)
