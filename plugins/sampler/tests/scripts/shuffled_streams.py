"""What an iterable dataset yields that shuffles in __iter__, in a plain process and over ranks."""

import random
import sys
from itertools import chain

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchbus import session

SHUFFLES = {
    "torch": lambda epoch: torch.randperm(8).tolist(),
    "python": lambda epoch: random.sample(range(8), 8),
    "numpy": lambda epoch: np.random.permutation(8).tolist(),
    "epoch": lambda epoch: random.Random(epoch).sample(range(8), 8),
}


class Stream(IterableDataset):
    def __init__(self, kind, lazily):
        self.kind, self.lazily, self.epoch = kind, lazily, 0

    def __iter__(self):
        return self.lazy() if self.lazily else iter(self.draw())

    def lazy(self):
        yield from self.draw()

    def draw(self):
        self.epoch += 1
        return SHUFFLES[self.kind](self.epoch)


def collate(items):
    if noise:  # as of a transform
        random.random(), np.random.rand(), torch.rand(1)
    return torch.tensor(items)


def train(kind, lazily, gather=lambda share: share):
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.01)
    loader = DataLoader(
        Stream(kind, lazily),
        4,
        num_workers=workers,
        collate_fn=collate,
        persistent_workers=persistent,
        multiprocessing_context="spawn" if spawned else None,
    )
    seen = []
    for _ in range(3):
        for batch in loader:
            (batch * weight).mean().backward()
            optimizer.step()
            seen.append(gather(batch.tolist()))
    return seen, loader.dataset.epoch


def is_whole(seen):
    """Whether each of three epochs has each sample once."""
    return all(sorted(seen[at] + seen[at + 1]) == list(range(8)) for at in (0, 2, 4))


workers, noise = int(sys.argv[1]), "noise" in sys.argv
persistent, spawned = "persistent" in sys.argv, "spawned" in sys.argv
if __name__ == "__main__":
    for kind in SHUFFLES:
        for lazily in (True, False):
            plain = train(kind, lazily)
            with session(strategy="ddp", devices=2, batch="global", launch="fork") as s:
                found = train(kind, lazily, lambda share: list(chain(*s.all_gather_object(share))))
            right = is_whole(found[0]) if noise else found == plain
            print(kind, lazily, "right" if right else f"wrong: {found}, not {plain}")
