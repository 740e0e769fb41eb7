"""Persistent workers, each of which opens the data for itself in worker_init_fn."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class LazyFile(Dataset):
    def __init__(self, n):
        self.n = n
        self.rows = None

    def open(self):
        g = torch.Generator().manual_seed(48)
        self.rows = torch.randn(self.n, 5, generator=g)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return self.rows[index, :4], self.rows[index, 4:]


def worker_init_fn(worker_id):
    get_worker_info().dataset.open()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    loader = DataLoader(
        LazyFile(58),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        worker_init_fn=worker_init_fn,
        prefetch_factor=1,
        generator=torch.Generator().manual_seed(3),
    )
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.6f}")
