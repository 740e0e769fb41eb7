"""Mixup: two targets for each batch, weighed by a number that is drawn."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    np.random.seed(0)
    x, y = torch.randn(44, 5), torch.randint(3, (44,))
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in range(2):
        for xb, yb in DataLoader(TensorDataset(x, y), args.batch_size, shuffle=True):
            lam = np.random.beta(1.0, 1.0)
            index = torch.randperm(len(xb))
            out = model(lam * xb + (1 - lam) * xb[index])
            loss = lam * criterion(out, yb) + (1 - lam) * criterion(out, yb[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}")
