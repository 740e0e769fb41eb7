"""find_batch_size on a device that is full at some size."""

import torch
from torchbus import session

import torchbus_simulator as accelerator

accelerator.load(devices=2)
with session("scale", strategy="ddp", devices=2, launch="fork") as s:
    accelerator.limit_memory(4 if s.rank else 64)
    model = torch.nn.Linear(256, 256).to(s.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tried = []

    def attempt(batch_size):
        tried.append(batch_size)
        model(torch.ones(batch_size, 256, device=s.device)).square().mean().backward()

    found = s.find_batch_size(attempt, 4096)
    s.print(found, tried[-1] == found, len(tried) > 1)
    s.print(all(other == tried for other in s.all_gather_object(tried)))
    print(s.rank, torch.sim.memory_allocated() < 4 * 2**20) if s.is_main else None
