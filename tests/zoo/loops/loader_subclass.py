"""A DataLoader subclass whose constructor takes other arguments than DataLoader's."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Graphs(Dataset):
    """Small graphs as (features, adjacency) of varying size."""

    def __init__(self, n):
        g = torch.Generator().manual_seed(50)
        sizes = torch.randint(2, 6, (n,), generator=g).tolist()
        self.graphs = [
            (torch.randn(s, 3, generator=g), (torch.rand(s, s, generator=g) > 0.5).double())
            for s in sizes
        ]

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, i):
        return self.graphs[i]


class GraphLoader(DataLoader):
    def __init__(self, graphs, per_batch, follow=()):
        self.follow = follow
        super().__init__(graphs, per_batch, shuffle=True, collate_fn=self.merge)

    @staticmethod
    def merge(batch):
        features = torch.cat([x for x, _ in batch])
        adjacency = torch.block_diag(*(a for _, a in batch))
        owner = torch.repeat_interleave(
            torch.arange(len(batch)), torch.tensor([len(x) for x, _ in batch])
        )
        return features, adjacency, owner, len(batch)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Linear(3, 6), nn.Linear(6, 1)

    def forward(self, x, adjacency, owner, n):
        x = torch.relu(adjacency @ self.conv(x))
        pooled = torch.zeros(n, 6).index_add(0, owner, x)
        return self.out(pooled).squeeze(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    loader = GraphLoader(Graphs(43), args.batch_size)
    model = GCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(2):
        for x, adjacency, owner, n in loader:
            optimizer.zero_grad()
            degree = torch.zeros(n).index_add(0, owner, adjacency.sum(1))
            loss = nn.functional.mse_loss(model(x, adjacency, owner, n), degree)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.5f}")
