"""A plain loop: mixed precision with a gradient scaler, clipping, gradients accumulated over two batches."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import sbpipe

torch.manual_seed(0)
labels = torch.arange(2048) % 4
points = 2 * torch.randn(4, 16)[labels] + torch.randn(2048, 16)
loader = DataLoader(TensorDataset(points, labels), batch_size=32, shuffle=True)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(device.type)


def losses(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


loader = sbpipe.select(loader, model, optimizer, losses=losses, keep=0.25, accumulate=2)

for _ in range(8):
    for number, batch in enumerate(loader, start=1):
        batch = [tensor.to(device) for tensor in batch]
        with torch.autocast(device.type, torch.bfloat16):
            loss = loader.weigh(losses(model, batch))
        scaler.scale(loss / 2).backward()
        if number % 2 == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

print(f"loss {functional.cross_entropy(model(points.to(device)), labels.to(device)).item():.3f}")
