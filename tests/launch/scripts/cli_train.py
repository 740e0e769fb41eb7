import pickle
import sys

import torch
from beside import WIDTH
from torch.utils.data import DataLoader, Dataset


class Point:
    def __init__(self, x):
        self.x, self.y = x, x.sum(0, keepdim=True)


class Points(Dataset):
    def __init__(self):
        self.xs = torch.randn(
            24, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )

    def __len__(self):
        return len(self.xs)

    def __getitem__(self, index):
        return Point(self.xs[index])


def stacked(points):
    return torch.stack([p.x for p in points]), torch.stack([p.y for p in points])


class Net(torch.nn.Linear):
    pass


def main(path, batch_size, *contexts):
    torch.manual_seed(0)
    model = Net(WIDTH, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for workers, context in enumerate(contexts, 1):
        loader = DataLoader(
            Points(),
            int(batch_size),
            num_workers=workers,
            collate_fn=stacked,
            multiprocessing_context=context,
        )
        for x, y in loader:
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
    torch.save(pickle.loads(pickle.dumps(model)).weight.detach(), path)


if __name__ == "__main__":
    print(sys.argv[5:])
    main(*sys.argv[1:5])
