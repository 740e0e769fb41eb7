"""Batches ahead on late streams: `PREFETCH`. A wait that is missing would give NaN."""

import json
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchbus import session

import torchbus_simulator as accelerator

order = []


class Graph:
    """A batch of a class of its own, which notes when it is moved."""

    def __init__(self, x, number):
        self.x, self.number = x, number

    def to(self, device):
        order.append(f"copy {self.number}")
        return Graph(self.x.pin_memory().to(device, non_blocking=True), self.number)


class Numbers(Dataset):
    bad = -1

    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index == self.bad:
            raise ValueError("bad sample")
        return torch.full((3,), 0.1 * index), index


def graphs(samples):
    return Graph(torch.stack([x for x, _ in samples]), samples[0][1] // 4)


def nested(samples):
    x = torch.stack([x for x, _ in samples])
    return {"x": (x, "words"), "twice": [2 * x]}


def training(batches, device, x_of):
    torch.manual_seed(0)
    model = nn.Linear(3, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, batch in enumerate(batches):
        optimizer.zero_grad()
        x = x_of(batch)
        loss = model(x).square().mean()
        if device != "cpu":
            time.sleep(0.2)  # a worker makes the next batch meanwhile
        loss.backward()
        x.zero_()  # what the loop writes is its own
        optimizer.step()
        order.append(f"end {number}")
    return [round(value, 6) for value in model.weight.detach().cpu().flatten().tolist()]


def loader(collate, **options):
    return DataLoader(Numbers(), 4, collate_fn=collate, num_workers=1, **options)


accelerator.load(devices=1, late=True)
expected = training(
    map(graphs, [[Numbers()[4 * i + k] for k in range(4)] for i in range(6)]),
    "cpu",
    lambda b: b.x.clone(),
)
with session(prefetch=int(sys.argv[1]), strategy=None, devices=1) as s:
    order.clear()
    print(training(loader(graphs), "sim", lambda batch: batch.x) == expected)
    print(json.dumps(order))
    found = training(loader(nested, pin_memory=True), "sim", lambda b: b["twice"][0] - b["x"][0])
    print(found == expected)
    kept = loader(nested)
    for batch in kept:
        print(batch["x"][0].device, batch["x"][1])
        break
    print(sum(len(batch["x"][0]) for batch in kept))
    Numbers.bad = 9
    order.clear()
    try:
        training(loader(graphs), "sim", lambda batch: batch.x)
    except ValueError as error:
        print("bad sample" in str(error), [one for one in order if "end" in one])
