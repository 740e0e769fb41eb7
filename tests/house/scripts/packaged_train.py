import sys

import torch
from torch.utils.data import DataLoader
from torchbus import session

if __name__ == "__main__":
    torch.manual_seed(0)
    with session(strategy=sys.argv[1], devices=2, accelerator="cpu", launch="fork") as s:
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1)
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        data = torch.randn(20, 4)
        for _ in range(2):
            for x in DataLoader(data, batch_size=4, shuffle=True):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        told = s.all_gather_object([s.rank, "x" * 10_000 * s.rank])
        weights = s.all_gather(model[0].weight.detach())
        print(
            [rank for rank, _ in told],
            len(told[1][1]),
            bool((weights[0] == weights[1]).all()),
            "numpy" in sys.modules,
        )
