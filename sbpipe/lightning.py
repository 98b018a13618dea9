"""Selection inside Lightning: a callback for the loader that `sbpipe.select` returns.

    loader = sbpipe.select(loader, module, losses=losses, keep=0.25)
    trainer = Trainer(callbacks=[sbpipe.lightning.Selection(loader)])
    trainer.fit(module, loader)          # training_step: self.trainer.train_dataloader.weigh(...)

It must not know how selection works.
"""

import sys
from typing import Any

from sbpipe.errors import MissingExtra, SbpipeError
from sbpipe.ownloop.handed import LoopError
from sbpipe.ownloop.loader import SelectedLoader
from sbpipe.ownloop.ranks import refuse_ranks

try:
    # The library has two names: take the one that the program has imported.
    if "lightning" in sys.modules:
        from lightning.pytorch import Callback
    else:
        from pytorch_lightning import Callback
except ImportError as error:
    raise MissingExtra("pytorch-lightning", "lightning", "callbacks of Lightning") from error

STATE = "sbpipe"
"""The key of selection's state in a checkpoint."""


class Selection(Callback):  # type: ignore[misc]
    """Tells the loader which optimizer steps, keeps its state in checkpoints, and ends its run."""

    def __init__(self, loader: SelectedLoader) -> None:
        super().__init__()
        self._loader = loader

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach the loader to the optimizer, which exists now."""
        refuse_ranks("Lightning")
        if len(trainer.optimizers) != 1:
            raise LoopError(
                f"selection: the module has {len(trainer.optimizers)} optimizers, and a train batch ends "
                "with the step of one. Call loader.attach(optimizer) with the one that steps once for each "
                "batch, and leave this callback out"
            )
        if trainer.accumulate_grad_batches != self._loader.accumulate:
            raise LoopError(
                f"selection: Trainer(accumulate_grad_batches={trainer.accumulate_grad_batches}), but "
                f"sbpipe.select(accumulate={self._loader.accumulate}). Give both the same number"
            )
        self._loader.attach(trainer.optimizers[0])

    # --- checkpoints ------------------------------------------------------------------------------

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Save our state, and drop Lightning's copy of it, which it would load in the middle of an epoch."""
        checkpoint[STATE] = self._loader.state_dict()
        checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {}).pop("combined_loader", None)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Load our state, before the first batch."""
        self._loader.load_state_dict(checkpoint.get(STATE, {}))

    # --- the end ----------------------------------------------------------------------------------

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the run after the last checkpoint of `fit`."""
        if stage == "fit":
            self._end(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """After an error `fit` ends without teardown."""
        self._end(exception)

    def _end(self, error: BaseException | None) -> None:
        # Checkpoints may still follow: one for the exception, or by trainer.save_checkpoint.
        state = {} if isinstance(error, SbpipeError) else self._loader.state_dict()
        self._loader.__exit__(None if error is None else type(error), error, None)
        self._loader.load_state_dict(state)
