"""The script's own autocast and GradScaler, gradients unscaled before they are clipped."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.manual_seed(0)

g = torch.Generator().manual_seed(27)
x = torch.randn(52, 8, generator=g)
y = x[:, :4].argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)

for epoch in range(3):
    for inputs, labels in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    print(f"epoch {epoch} scale {scaler.get_scale():g}")
scale = scaler.get_scale()
