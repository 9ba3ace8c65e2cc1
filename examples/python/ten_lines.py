"""A Sequential that trains inside 60 % of its memory. Everything else is plain PyTorch."""

import reprise
import torch
from torch import nn

torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()) for _ in range(12)]
x, y = torch.randn(4096, 256), torch.randint(0, 10, (4096,))

model = reprise.remat(nn.Sequential(*layers, nn.Linear(256, 10)), x, budget="60%")
print(model.planned)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(5):
    optimizer.zero_grad()
    output = model(x)
    loss = nn.functional.cross_entropy(output, y)
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}  {model.report()}")
