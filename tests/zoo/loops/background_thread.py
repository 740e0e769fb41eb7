"""A thread reads batches into a queue while the loop trains; batches are dicts, and the end is
ragged.
"""

import argparse
import queue
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, size):
        self.x = torch.randn(size, 4, generator=torch.Generator().manual_seed(52))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"inputs": {"x": self.x[index]}, "target": self.x[index].sum()}


def background(loader, depth=2):
    batches = queue.Queue(depth)

    def read():
        for batch in loader:
            batches.put(batch)
        batches.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (batch := batches.get()) is not None:
        yield batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    loader = DataLoader(Rows(37), batch_size=args.batch_size)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(3):
        for batch in background(loader):
            loss = nn.functional.mse_loss(model(batch["inputs"]["x"]).squeeze(1), batch["target"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.5f}")
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
