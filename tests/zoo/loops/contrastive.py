"""InfoNCE: every other sample of the batch is a negative, and the labels are made from the batch
size of the arguments.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Views(Dataset):
    def __len__(self):
        return 61

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(6, generator=g)
        return [x + 0.1 * torch.randn(6, generator=g), x + 0.1 * torch.randn(6, generator=g)], i % 5


class SimpleContrast:
    def __init__(self, args, model, optimizer):
        self.args, self.model, self.optimizer = args, model, optimizer
        self.criterion = nn.CrossEntropyLoss()

    def info_nce_loss(self, features):
        labels = torch.cat([torch.arange(self.args.batch_size) for _ in range(2)])
        labels = labels.unsqueeze(0) == labels.unsqueeze(1)
        features = nn.functional.normalize(features, dim=1)
        similarity = features @ features.T
        other = ~torch.eye(len(labels), dtype=torch.bool)
        labels, similarity = (
            labels[other].view(len(labels), -1),
            similarity[other].view(len(labels), -1),
        )
        positives = similarity[labels].view(len(labels), -1)
        negatives = similarity[~labels].view(len(labels), -1)
        return torch.cat([positives, negatives], dim=1) / 0.5, torch.zeros(
            len(labels), dtype=torch.long
        )

    def train(self, loader):
        for epoch in range(3):
            for views, _ in loader:
                logits, targets = self.info_nce_loss(self.model(torch.cat(views)))
                loss = self.criterion(logits, targets)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            print(f"epoch {epoch} loss {loss.item():.5f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    loader = DataLoader(Views(), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4)
    SimpleContrast(args, model, optimizer).train(loader)
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
