"""A test loader that shuffles, batches that are counted, accuracy over len(dataset)."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
opt = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

features = torch.randn(80, 5, generator=torch.Generator().manual_seed(3))
labels = (features.sum(1) > 0).long()
train_set, test_set = random_split(TensorDataset(features, labels), [59, 21])
train_loader = DataLoader(train_set, batch_size=opt.batch_size, shuffle=True, drop_last=True)
test_loader = DataLoader(test_set, batch_size=opt.batch_size, shuffle=True)

net = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss()


@torch.no_grad()
def evaluate():
    net.eval()
    correct = 0
    for inputs, targets in test_loader:
        correct += (net(inputs).argmax(1) == targets).sum().item()
    net.train()
    return correct / len(test_loader.dataset)


accuracies = []
for epoch in range(3):
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        criterion(net(inputs), targets).backward()
        optimizer.step()
    accuracies.append(evaluate())
    print("epoch", epoch, "accuracy", accuracies[-1])
accuracy = sum(accuracies)
