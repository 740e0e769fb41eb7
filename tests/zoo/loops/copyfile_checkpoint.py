"""pytorch/examples imagenet: save_checkpoint(), then shutil.copyfile of what was just saved."""

import argparse
import shutil

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, "model_best.pth.tar")


def accuracy(loader, model):
    with torch.no_grad():
        correct = sum(model(images).argmax(1).eq(target).sum().item() for images, target in loader)
    return 100.0 * correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", "--batch-size", default=8, type=int)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(33)
    x = torch.randn(65, 5, generator=g)
    y = x[:, :3].argmax(1)
    train_loader = DataLoader(
        TensorDataset(x[:44], y[:44]), batch_size=args.batch_size, shuffle=True
    )
    val_loader = DataLoader(TensorDataset(x[44:], y[44:]), batch_size=args.batch_size)
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9, weight_decay=1e-4)
    best_acc1 = 0.0
    for epoch in range(3):
        for images, target in train_loader:
            loss = nn.functional.cross_entropy(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        acc1 = accuracy(val_loader, model)
        print(f" * Acc@1 {acc1:.3f}")
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        save_checkpoint(
            {"epoch": epoch + 1, "state_dict": model.state_dict(), "best_acc1": best_acc1}, is_best
        )
    best = torch.load("model_best.pth.tar")
    return {"model": model, "optimizer": optimizer, "best_acc1": best["best_acc1"]}


if __name__ == "__main__":
    result = main()
