"""After each stage model and optimizer are pickled together, read back, and trained on; a trial
goes on with a copy of both.
"""

import argparse
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(model, optimizer, loader):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
g = torch.Generator().manual_seed(45)
dataset = TensorDataset(torch.randn(46, 3, generator=g), torch.randn(46, 1, generator=g))
loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)

model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for stage in range(2):
    print(stage, f"{train(model, optimizer, loader):.5f}")
    torch.save([model, optimizer], "stage.pt")
    model, optimizer = torch.load("stage.pt", weights_only=False)
trial, trial_optimizer = copy.deepcopy((model, optimizer))
trial_optimizer.param_groups[0]["lr"] = 1e-3
print("trial", f"{train(trial, trial_optimizer, loader):.5f}")
print("on", f"{train(model, optimizer, loader):.5f}")
