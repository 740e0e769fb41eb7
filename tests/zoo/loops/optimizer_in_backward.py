"""torchtune's memory saver: each parameter has its own optimizer, stepped by a hook inside
backward.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(54, 4, generator=torch.Generator().manual_seed(65))
loader = DataLoader(TensorDataset(x, x.exp()), batch_size=args.batch_size, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
optimizers = {p: torch.optim.Adam([p], lr=1e-2, foreach=False) for p in model.parameters()}


def optimizer_hook(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(optimizer_hook)

for epoch in range(2):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
    print(f"epoch {epoch} done")
