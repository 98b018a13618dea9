"""A language model in the Trainer of transformers: a tiny GPT-2 on sequences that count up and wrap."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed

from sbpipe.hf import SelectingTrainer as Trainer

set_seed(0)
starts = torch.randint(0, 64, (512, 1))
strides = torch.randint(1, 4, (512, 1))
rows = (starts + strides * torch.arange(16)) % 64
sequences = [{"input_ids": row, "labels": row} for row in rows]


def losses(model, batch):
    logits = model(batch["input_ids"]).logits[:, :-1].transpose(1, 2)
    return torch.nn.functional.cross_entropy(logits, batch["labels"][:, 1:], reduction="none").mean(1)


model = GPT2LMHeadModel(
    GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
)
trainer = Trainer(
    model,
    TrainingArguments(tempfile.mkdtemp(), num_train_epochs=4, gradient_accumulation_steps=2),
    train_dataset=sequences,
    eval_dataset=sequences[:128],
    losses=losses,
)
trainer.train()
print(f"loss {trainer.evaluate()['eval_loss']:.3f}")
