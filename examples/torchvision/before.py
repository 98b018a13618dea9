"""A segmenter of torchvision: one of two shapes somewhere in a noisy picture."""

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision.models.segmentation import lraspp_mobilenet_v3_large


class Shapes(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(number)
        top, left, size = torch.randint(8, 24, (3,), generator=generator).tolist()
        mask = torch.zeros(48, 48, dtype=torch.long)
        mask[top : top + size, left : left + (size if number % 2 else size // 3)] = 1 + number % 2
        return torch.randn(3, 48, 48, generator=generator) + mask, mask


torch.manual_seed(0)
model = lraspp_mobilenet_v3_large(num_classes=3, weights_backbone=None)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(Shapes(), batch_size=8, shuffle=True)

for _ in range(1):
    for images, masks in loader:
        loss = functional.cross_entropy(model(images)["out"], masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

print(f"loss {loss.item():.3f}")
