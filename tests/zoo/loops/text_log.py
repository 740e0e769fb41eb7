"""Makes its folder if it is not there, appends a row of csv per epoch, and keeps the best
checkpoint in the folder.
"""

import argparse
import csv
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
g = torch.Generator().manual_seed(23)
x = torch.randn(71, 4, generator=g)
y = (x.sum(1) > 0).long()
train_loader = DataLoader(TensorDataset(x[:50], y[:50]), batch_size=args.batch_size, shuffle=True)
test_loader = DataLoader(TensorDataset(x[50:], y[50:]), batch_size=10)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
best_acc = 0.0

if not os.path.isdir("results"):
    os.mkdir("results")
logname = "results/log.csv"
if not os.path.exists(logname):
    with open(logname, "w", newline="") as logfile:
        csv.writer(logfile).writerow(["epoch", "train loss", "test acc"])

for epoch in range(4):
    net.train()
    train_loss = 0.0
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), targets)
        loss.backward()
        optimizer.step()
        train_loss += loss.item()
    net.eval()
    correct = 0
    for inputs, targets in test_loader:
        correct += net(inputs).max(1)[1].eq(targets).sum().item()
    acc = 100.0 * correct / len(test_loader.dataset)
    if acc > best_acc:
        if not os.path.isdir("checkpoint"):
            os.mkdir("checkpoint")
        torch.save(
            {"net": net.state_dict(), "acc": acc, "rng_state": torch.get_rng_state()},
            "checkpoint/ckpt.pt",
        )
        best_acc = acc
    scheduler.step()
    with open(logname, "a", newline="") as logfile:
        csv.writer(logfile).writerow([epoch, f"{train_loss / len(train_loader):.6f}", acc])

with open(logname) as logfile:
    rows = len(logfile.readlines())
print(f"{rows} rows, best accuracy {best_acc:.2f}")
