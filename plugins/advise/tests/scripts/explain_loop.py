from pathlib import Path

import torch

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(2, 3)).mean().backward()
    optimizer.step()
    Path("trained").touch()
