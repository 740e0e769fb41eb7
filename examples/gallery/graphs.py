"""A graph network that classifies whether a graph is a ring: batches are objects of the script.

::

    python examples/gallery/graphs.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pictures import curve
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchbus import session

GRAPHS, MOST_NODES, WIDTH, LAYERS = 1200, 12, 32, 3


@dataclass
class Graphs:
    """Some graphs as one. ``edges`` (2, edges) and ``owner`` (nodes) count over all of them."""

    nodes: Tensor
    edges: Tensor
    owner: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def drawn(is_ring: bool) -> tuple[int, Tensor, bool]:
    """A ring, or a ring with one edge moved: both have as many nodes as edges."""
    count = int(torch.randint(5, MOST_NODES + 1, ()))
    order = torch.randperm(count)
    edges = torch.stack([order, order.roll(1)])
    if not is_ring:
        edges[1, 0] = order[2]
    return count, torch.cat([edges, edges.flip(0)], 1), is_ring


def together(graphs: list[tuple[int, Tensor, bool]]) -> Graphs:
    """The collate function: number the nodes of all graphs one after another."""
    counts = torch.tensor([count for count, _, _ in graphs])
    before = counts.cumsum(0) - counts
    return Graphs(
        nodes=torch.ones(int(counts.sum()), 1),
        edges=torch.cat(
            [edges + first for (_, edges, _), first in zip(graphs, before, strict=True)], 1
        ),
        owner=torch.arange(len(graphs)).repeat_interleave(counts),
        labels=torch.tensor([float(label) for _, _, label in graphs]),
    )


class Network(nn.Module):
    """Graph isomorphism network: https://arxiv.org/abs/1810.00826"""

    def __init__(self) -> None:
        super().__init__()
        sizes = [1, *[WIDTH] * LAYERS]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(size, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
            for size in sizes[:-1]
        )
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, graphs: Graphs) -> Tensor:
        x = graphs.nodes
        for layer in self.layers:
            x = layer(x + torch.zeros_like(x).index_add(0, graphs.edges[1], x[graphs.edges[0]]))
        rows = graphs.owner.unsqueeze(1).expand_as(x)
        largest = x.new_zeros(len(graphs), WIDTH).scatter_reduce(0, rows, x, "amax")
        logits: Tensor = self.head(largest)
        return logits.squeeze(1)


def main(epochs: int = 12) -> None:
    torch.manual_seed(0)
    graphs = [drawn(number % 2 == 0) for number in range(GRAPHS)]
    held: Dataset[Graphs] = graphs[200:]  # type: ignore[assignment]
    loader = DataLoader(held, batch_size=32, shuffle=True, collate_fn=together)
    network, known = Network(), together(graphs[:200])
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    accuracies = []
    for _ in range(epochs):
        for batch in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(network(batch), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            right = (network(known) > 0) == (known.labels > 0.5)
        accuracies.append(right.float().mean().item())
    print(f"{accuracies[0]:.0%} of the graphs right at first, {accuracies[-1]:.0%} at last")
    curve(accuracies, "graphs.png")


if __name__ == "__main__":
    with session(strategy="ddp", devices=2, batch="global"):
        main()
