"""Saves into an open file, reads it back when it ends; steps by hand and lowers its own rate when
validation gets worse.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--save", default="model.pt")
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
g = torch.Generator().manual_seed(41)
x = torch.randn(59, 4, generator=g)
y = x.prod(1, keepdim=True)
loader = DataLoader(TensorDataset(x[:47], y[:47]), batch_size=args.batch_size, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
criterion = nn.MSELoss()


def evaluate():
    model.eval()
    with torch.no_grad():
        return criterion(model(x[47:]), y[47:]).item()


lr, best_val_loss = 0.5, None
try:
    for epoch in range(4):
        model.train()
        for inputs, target in loader:
            model.zero_grad()
            loss = criterion(model(inputs), target)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-lr)
        val_loss = evaluate()
        print(f"epoch {epoch} lr {lr:g} valid loss {val_loss:.5f}")
        if best_val_loss is None or val_loss < best_val_loss:
            with open(args.save, "wb") as f:
                torch.save(model, f)
            best_val_loss = val_loss
        else:
            lr /= 4.0
except KeyboardInterrupt:
    print("Exiting from training early")

with open(args.save, "rb") as f:
    model = torch.load(f, weights_only=False)
test_loss = evaluate()
print(f"End of training: test loss {test_loss:.5f}")
