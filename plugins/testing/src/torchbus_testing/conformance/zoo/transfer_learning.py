"""A frozen backbone, unfrozen in mid-run: its parameters join the optimizer in a new group."""

import argparse

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset


def pretrained_backbone():
    torch.manual_seed(99)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())


def make_loader(n, seed, batch_size, shuffle):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return DataLoader(
        TensorDataset(x, (x[:, 0] > x[:, 1]).long()), batch_size=batch_size, shuffle=shuffle
    )


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = pretrained_backbone()
        for param in self.backbone.parameters():
            param.requires_grad = False
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
        return self.fc(self.backbone(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    loaders = {
        "train": make_loader(55, 52, args.batch_size, shuffle=True),
        "val": make_loader(18, 53, args.batch_size, shuffle=False),
    }
    model = Classifier()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1, momentum=0.9)
    scheduler = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    for epoch in range(4):
        if epoch == 2:
            for param in model.backbone.parameters():
                param.requires_grad = True
            optimizer.add_param_group({"params": model.backbone.parameters(), "lr": 0.01})
            scheduler = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        model.train()
        running_loss = 0.0
        for inputs, labels in loaders["train"]:
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item() * inputs.size(0)
        scheduler.step()
        model.eval()
        with torch.no_grad():
            corrects = sum(torch.sum(model(x).argmax(1) == y).item() for x, y in loaders["val"])
        epoch_acc = corrects / len(loaders["val"].dataset)
        print(
            f"epoch {epoch} Loss: {running_loss / len(loaders['train'].dataset):.4f} Acc: {epoch_acc:.4f}"
        )
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "epoch_acc": epoch_acc,
    }


if __name__ == "__main__":
    result = main()
