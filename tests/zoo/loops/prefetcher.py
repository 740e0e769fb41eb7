"""NVIDIA's data_prefetcher: a batch is fetched and converted while the one before it is computed
with; the end is ragged.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Prefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.preload()

    def preload(self):
        try:
            self.next_input, self.next_target = next(self.loader)
        except StopIteration:
            self.next_input = self.next_target = None
            return
        self.next_input = self.next_input.double().sub_(4).div_(8)

    def next(self):
        batch = self.next_input, self.next_target
        self.preload()
        return batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(51)
    images = torch.randint(0, 9, (43, 5), generator=g, dtype=torch.uint8)
    labels = (images.sum(1) > 20).long()
    loader = DataLoader(TensorDataset(images, labels), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for epoch in range(3):
        prefetcher = Prefetcher(loader)
        x, y = prefetcher.next()
        while x is not None:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            x, y = prefetcher.next()
        print(f"epoch {epoch} loss {loss.item():.5f}")
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
