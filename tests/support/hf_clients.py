"""A Trainer of transformers for tests; its import is slow."""

from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainingArguments

from sbpipe.hf import SelectingTrainer
from support.clients import INLINE, Net, Numbered


def trainer_of(
    path: Path,
    losses: Any,
    *,
    batch_size: int = 8,
    accumulate: int = 1,
    callbacks: list[TrainerCallback] | None = None,
    **arguments: Any,
) -> SelectingTrainer:
    """Trains on one pass over its loader, unless told otherwise."""
    model = Net()
    args = TrainingArguments(
        str(path / "out"),
        use_cpu=True,
        max_grad_norm=0.0,
        disable_tqdm=True,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulate,
        **{"num_train_epochs": 1, "save_strategy": "no", **arguments},
    )
    return SelectingTrainer(
        model,
        args,
        train_dataset=Numbered(),
        eval_dataset=Numbered(16),
        optimizers=(torch.optim.SGD(model.parameters(), 0.05), None),
        callbacks=callbacks,
        losses=losses,
        keep=0.25,
        settings=INLINE,
    )
