"""Fine-tunes on some ranks, perhaps in parts, and saves what the weights were after each epoch."""

import json
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

options, kind, ends_at, path = json.loads(sys.argv[1])
torch.manual_seed(3)
x = torch.randn(48, 6, dtype=torch.float64)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())


class Net(torch.nn.Module):
    """Its statistics, which depend on how a batch is divided, are frozen to the end."""

    def __init__(self):
        super().__init__()
        self.layer1 = torch.nn.Linear(6, 5)
        self.norm = torch.nn.BatchNorm1d(5)
        self.layer2 = torch.nn.Linear(5, 5)
        self.head = torch.nn.Linear(5, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.layer2(torch.tanh(self.norm(self.layer1(x))))))


def weights():
    return {name: value.clone() for name, value in model.state_dict().items()}


with session(**options) as s:
    torch.manual_seed(0)
    model = Net().double()
    trained = model.parameters() if kind == "all" else model.head.parameters()
    optimizer = torch.optim.AdamW(trained, lr=0.05, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    seen = []
    for epoch in s.epochs(3):
        model.train()
        for number, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            scheduler.step()
            if [epoch, number] == ends_at:
                raise SystemExit(7)
        model.eval()
        seen.append(weights())
    averaged = weights()  # in eval mode
    model.train()
    rates = [group["lr"] for group in optimizer.param_groups]
    found = {"seen": seen, "averaged": averaged, "trained": weights(), "rates": rates}
    if s.is_main:
        torch.save(found, path)
