"""Nothing is seeded: initialisation and order differ from run to run, and must not from rank to
rank.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LogisticRegression(nn.Module):
    def __init__(self, n_inputs, n_outputs):
        super().__init__()
        self.linear = nn.Linear(n_inputs, n_outputs)

    def forward(self, x):
        return torch.sigmoid(self.linear(x))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    x = torch.arange(57.0)[:, None] / 57
    dataset = TensorDataset(x, (x > 0.4).double())
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)
    model = LogisticRegression(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    criterion = nn.BCELoss()
    for epoch in range(3):
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
