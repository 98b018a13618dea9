"""A loop with accelerate, which minds devices, precision and accumulation."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
labels = torch.arange(2048) % 4
points = 2 * torch.randn(4, 16)[labels] + torch.randn(2048, 16)
loader = DataLoader(TensorDataset(points, labels), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

accelerator = Accelerator(gradient_accumulation_steps=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for _ in range(8):
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(functional.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()

points, labels = points.to(accelerator.device), labels.to(accelerator.device)
print(f"loss {functional.cross_entropy(model(points), labels).item():.3f}")
