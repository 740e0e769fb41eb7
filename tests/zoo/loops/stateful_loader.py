"""torchdata's StatefulDataLoader; its place in an epoch is saved and gone on from in mid-epoch."""

import argparse
import warnings

import torch
from torch import nn
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

warnings.filterwarnings("ignore", message=".*set_vital.*")


def make_loader(data, batch_size):
    return StatefulDataLoader(
        data, batch_size, shuffle=True, generator=torch.Generator().manual_seed(3)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    x = torch.randn(41, 3)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = make_loader(data, args.batch_size)
    for part in range(2):
        for step, (xb, yb) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(xb), yb)
            loss.backward()
            optimizer.step()
            if part == 0 and step == 1:
                state = loader.state_dict()
                break
        print(f"loss {loss.item():.6f}")
        loader = make_loader(data, args.batch_size)
        loader.load_state_dict(state)
