"""A loop that names its device in one way or another, against one process on the CPU.

The arguments: the way, and options of the session as JSON.
"""

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchbus import session

import torchbus_simulator as accelerator

WAYS = {
    "to": lambda thing: thing.to("sim"),
    "method": lambda thing: thing.sim(),
    "first": lambda thing: thing.to("sim:0"),
    "default": lambda thing: thing.to(torch.accelerator.current_accelerator()),
    "nothing": lambda thing: thing,
}


def loop(move, batch, epochs=2):
    torch.manual_seed(0)
    x, y = torch.rand(90, 1, 8, 8), torch.randint(0, 10, (90,))
    model = move(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(x, y), batch, shuffle=True)
    for _ in range(epochs):
        for images, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(move(images)), move(targets))
            loss.backward()
            optimizer.step()
    return model, optimizer, loss


accelerator.load(devices=3)
way, options = sys.argv[1], json.loads(sys.argv[2])
with session(**({"devices": 2, "launch": "fork"} | options)) as s:
    model, _, loss = loop(WAYS[way], 8)
    state = model.state_dict()
    values = torch.cat([value.detach().flatten() for value in state.values()])
    same = all(torch.equal(values, other) for other in s.all_gather(values))
    several = s.world_size > 1
    backend = torch.distributed.get_backend() if several else "alone"
    s.print(next(iter(state.values())).device, backend, same)
    values, last = values.cpu(), loss.item()
if s.is_main:
    alone, _, loss = loop(lambda thing: thing, 16 if several and options["strategy"] != "dp" else 8)
    expected = torch.cat([value.detach().flatten() for value in alone.state_dict().values()])
    print(float((expected - values).abs().max()) < 2e-6, abs(loss.item() - last) < 1e-5)
