"""A data set that is prepared by a pool of processes, which are terminated when the preparation is
done.
"""

import argparse
import multiprocessing

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def classes_in(seed):
    return torch.randint(3, (8,), generator=torch.Generator().manual_seed(seed)).unique().tolist()


class Scanned(Dataset):
    def __init__(self, size):
        with multiprocessing.Pool(2) as pool:
            found = pool.map(classes_in, range(size))
        self.labels = [classes[-1] for classes in found]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.randn(6, generator=torch.Generator().manual_seed(i)), self.labels[i]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    loader = DataLoader(Scanned(43), batch_size=args.batch_size, shuffle=True)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2, momentum=0.9)
    for epoch in range(3):
        child = multiprocessing.Process(target=multiprocessing.Event().wait)
        child.start()
        child.terminate()
        child.join()
        for inputs, targets in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.5f}")
    return {"model": model, "optimizer": optimizer}


if __name__ == "__main__":
    result = main()
