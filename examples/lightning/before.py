"""A module and a Trainer of Lightning."""

import pytorch_lightning as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

criterion = nn.CrossEntropyLoss()


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, points):
        return self.layers(points)

    def training_step(self, batch):
        return criterion(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


torch.manual_seed(0)
labels = torch.arange(2048) % 4
points = 2 * torch.randn(4, 16)[labels] + torch.randn(2048, 16)
loader = DataLoader(TensorDataset(points, labels), batch_size=32, shuffle=True)
net = Net()
trainer = lightning.Trainer(
    max_epochs=8,
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(net, loader)
print(f"loss {criterion(net(points), labels).mean().item():.3f}")
