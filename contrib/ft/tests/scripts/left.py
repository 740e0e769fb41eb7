"""Prints the threads and listening ports that remain after a session, as JSON."""

import json
import sys
import threading

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

from torchbus_ft.strategy import FT
from torchbus_testing.processes import listening_ports
from torchbus_testing.state import assert_torch_unchanged, torch_state

URL = sys.argv[sys.argv.index("--lighthouse") + 1]


def train() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (inputs,) in DataLoader(TensorDataset(torch.randn(8, 4)), 2):
        optimizer.zero_grad()
        model(inputs).mean().backward()
        optimizer.step()


import torch.distributed.nn  # noqa: E402  a first session loads this permanently

before = torch_state()
with session(FT(lighthouse=URL), launch="fork"):
    train()
assert_torch_unchanged(before)
threads = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
print(json.dumps({"threads": threads, "ports": listening_ports()}))
