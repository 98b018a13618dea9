"""A classifier of ragged sentences in the Trainer of transformers: a tiny BERT, padded batch by batch."""

import tempfile

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments, set_seed

from sbpipe.hf import SelectingTrainer as Trainer

set_seed(0)
sentences = [
    {"input_ids": torch.randint(1 + 20 * (k % 2), 43 + 20 * (k % 2), (4 + k % 7,)), "labels": k % 2}
    for k in range(512)
]


def padded(examples):
    ids = pad_sequence([example["input_ids"] for example in examples], batch_first=True)
    labels = torch.tensor([example["labels"] for example in examples])
    return {"input_ids": ids, "attention_mask": ids.ne(0).long(), "labels": labels}


def losses(model, batch):
    return torch.nn.functional.cross_entropy(model(**batch).logits, batch["labels"], reduction="none")


model = BertForSequenceClassification(
    BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
)
trainer = Trainer(
    model,
    TrainingArguments(tempfile.mkdtemp(), num_train_epochs=4, per_device_train_batch_size=16),
    train_dataset=sentences,
    eval_dataset=sentences[:128],
    data_collator=padded,
    losses=losses,
    keep=0.25,
)
trainer.train()
print(f"loss {trainer.evaluate()['eval_loss']:.3f}")
