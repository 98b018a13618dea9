"""Selection inside the Trainer of transformers: a mixin for any Trainer, and the plain one that has it.

    trainer = sbpipe.hf.SelectingTrainer(model, args, train_dataset=..., losses=losses, keep=0.25)
    trainer.train()

It must not know how selection works.
"""

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sbpipe.errors import MissingExtra, ModelError
from sbpipe.files import atomic_file
from sbpipe.models.stand_in import Losses
from sbpipe.ownloop.handed import LoopError
from sbpipe.ownloop.loader import SelectedLoader
from sbpipe.ownloop.ranks import refuse_ranks
from sbpipe.ownloop.select import select

try:
    from transformers import Trainer
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint
except ImportError as error:
    raise MissingExtra("transformers", "hf", "trainers of Hugging Face") from error

if TYPE_CHECKING:
    from transformers import Trainer as _Mixed
else:
    _Mixed = object

log = logging.getLogger("sbpipe")

STATE = "sbpipe.pt"
"""The file of selection's state in a checkpoint's folder."""


class Selecting(_Mixed):  # type: ignore[misc]
    """A mixin in front of a Trainer: `class MyTrainer(sbpipe.hf.Selecting, Trainer)`.

    `losses(model, batch)` gives one value per example: a keyword, or a static method of the class. `keep`,
    `selector`, `publish`, `run_dir` and `settings` are those of `sbpipe.select`.
    """

    loss_is_scaled_for_ga = False
    """The mean of a batch: the Trainer divides it by the batches of an optimizer step."""
    losses: Losses | None = None

    def __init__(
        self,
        *args: Any,
        losses: Losses | None = None,
        keep: float | str | None = None,
        selector: str | None = "auto",
        publish: torch.nn.Module | None = None,
        run_dir: str | Path | None = None,
        settings: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if losses is not None:
            self.losses = losses
        self._check_losses()
        self._arguments: dict[str, Any] = {
            "keep": keep,
            "selector": selector,
            "publish": publish,
            "run_dir": run_dir,
            "settings": settings,
        }
        # The selected loader resumes by itself; skipped batches would be selected for nothing.
        self.args.ignore_data_skip = True
        self.selected: SelectedLoader | None = None
        """The loader that the last `train` drew its batches from."""
        self._run: ExitStack | None = None
        self._checkpoint: Path | None = None

    def _check_losses(self) -> None:
        if self.losses is None:
            raise ModelError(
                "losses: none are given. Give the Trainer losses=..., a function losses(model, batch) that "
                "returns one value per example"
            )
        if getattr(self.losses, "__self__", None) is self:
            raise ModelError(
                "losses: is a method of the Trainer, which cannot be sent to a selector. Make it a "
                "@staticmethod losses(model, batch)"
            )
        if self.label_smoother is not None or self.compute_loss_func is not None:
            log.warning(
                "losses decide what is trained on: label_smoothing_factor and compute_loss_func are used in "
                "evaluation alone"
            )

    # --- training ---------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer does; selectors end with it, even after an error."""
        found = resume_from_checkpoint
        if found is True:
            found = get_last_checkpoint(self.args.output_dir)
        self._checkpoint = Path(found) if found else None
        with ExitStack() as self._run:
            try:
                return super().train(resume_from_checkpoint, *args, **kwargs)
            finally:
                self._run = self._checkpoint = None

    def get_train_dataloader(self) -> Any:
        """The selected loader while training; at other times the loader that it selects from."""
        loader = super().get_train_dataloader()
        if self._run is None:
            return loader
        refuse_ranks("the Trainer")
        # The Trainer's own, which seeds workers; here every example is seeded.
        loader.worker_init_fn = None
        # auto_find_batch_size starts again with smaller batches.
        self._run.close()
        assert self.losses is not None, "checked"
        selected = select(
            loader,
            self.model,
            losses=self.losses,
            accumulate=self.args.gradient_accumulation_steps,
            **self._arguments,
        )
        self.selected = self._run.enter_context(selected)
        self._restore(selected)
        return selected

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer does; its steps finish train batches."""
        optimizer = super().create_optimizer(*args, **kwargs)
        if self.selected is not None:
            self.selected.attach(optimizer)
        return optimizer

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The weighted mean of the losses while training; the Trainer's own loss in evaluation."""
        if not model.training or self.selected is None or self.losses is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if return_outputs:
            raise LoopError(
                "compute_loss: return_outputs=True while training: losses(model, batch) gives no outputs. "
                "Ask for them in evaluation"
            )
        return self.selected.weigh(self.losses(model, inputs))

    # --- checkpoints ------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save our state first, so that every complete checkpoint has it."""
        if self.selected is not None and self.args.should_save and not self.args.save_only_model:
            folder = Path(self._get_output_dir(trial=trial))
            folder /= f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_file(folder / STATE) as file:
                torch.save(self.selected.state_dict(), file)
        super()._save_checkpoint(model, trial)

    def _restore(self, selected: SelectedLoader) -> None:
        if self._checkpoint is None:
            return
        path = self._checkpoint / STATE
        if not path.exists():
            log.warning("%s: holds nothing of selection, which begins anew", self._checkpoint)
            return
        selected.load_state_dict(torch.load(path, weights_only=True))


class SelectingTrainer(Selecting, Trainer):  # type: ignore[misc]
    """The Trainer of transformers, trained on selected examples."""
