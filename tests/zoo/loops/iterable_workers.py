"""An IterableDataset that divides itself among the loader's workers with get_worker_info()."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Numbers(IterableDataset):
    def __init__(self, start, end):
        self.start, self.end = start, end

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        for i in range(self.start + worker, self.end, workers):
            yield torch.tensor([float(i), 1.0]) / self.end


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    loader = DataLoader(Numbers(3, 58), batch_size=args.batch_size, num_workers=args.workers)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(2):
        for batch in loader:
            optimizer.zero_grad()
            loss = (model(batch).squeeze(1) - batch[:, 0].sqrt()).square().mean()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.6f}")
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
