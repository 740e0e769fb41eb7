"""OneCycleLR planned with len(loader): one step too many and the scheduler raises."""

import argparse

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


def get_data(bs):
    g = torch.Generator().manual_seed(26)
    x = torch.randn(54, 4, generator=g)
    y = (x.prod(1) > 0).long()
    return (
        DataLoader(TensorDataset(x[:43], y[:43]), batch_size=bs, shuffle=True),
        DataLoader(TensorDataset(x[43:], y[43:]), batch_size=64),
    )


def fit(epochs, model, loss_func, opt, sched, train_dl, valid_dl):
    for epoch in range(epochs):
        model.train()
        for xb, yb in train_dl:
            loss = loss_func(model(xb), yb)
            loss.backward()
            opt.step()
            opt.zero_grad()
            sched.step()

        model.eval()
        with torch.no_grad():
            valid_loss = sum(loss_func(model(xb), yb) for xb, yb in valid_dl)
        print(epoch, f"{(valid_loss / len(valid_dl)).item():.6f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch-size", "-b", type=int, default=4)
    bs = ap.parse_args().batch_size
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    train_dl, valid_dl = get_data(bs)
    model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2))
    opt = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sched = optim.lr_scheduler.OneCycleLR(opt, max_lr=0.2, epochs=3, steps_per_epoch=len(train_dl))
    fit(3, model, nn.functional.cross_entropy, opt, sched, train_dl, valid_dl)
