"""Model, optimizer and loader are made at the top of the file; main() only trains."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

data = torch.randn(61, 3, generator=torch.Generator().manual_seed(44))
loader = DataLoader(TensorDataset(data, data.relu()), batch_size=args.batch_size, shuffle=True)
model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)


def main():
    for epoch in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.5f} lr {scheduler.get_last_lr()[0]:.5f}")
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


if __name__ == "__main__":
    result = main()
