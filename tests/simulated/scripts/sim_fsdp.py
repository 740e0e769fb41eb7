"""Waits of the host in each step of fsdp on the simulated accelerator, with a session and by hand.

The arguments: ``session`` or ``hand``, and a file by which ranks without a session meet.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torchbus import session

import torchbus_simulator as accelerator

STEPS, BATCH, WIDTH = 24, 8, 6


def loop(batch, sampler=None, shard=lambda model: None):
    """The waits of each step, and the parameters, whole."""
    torch.manual_seed(0)
    x, y = torch.randn(STEPS * BATCH * 2, WIDTH), torch.randint(0, 3, (STEPS * BATCH * 2,))
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 3)).to("sim")
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(x, y)
    given = {"sampler": sampler(data)} if sampler else {"shuffle": True}
    loader, steps = DataLoader(data, batch, pin_memory=True, **given), []
    batches = iter(loader)
    for _ in range(STEPS):
        with accelerator.host_waits() as waits:
            inputs, targets = (one.to("sim", non_blocking=True) for one in next(batches))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        steps.append([str(wait) for wait in waits])
    return steps, model


def by_hand(rank):
    """What the tutorial of torch's fully_shard does, on two processes."""
    accelerator.load(devices=2)
    torch.accelerator.set_device_index(rank)
    store = dist.FileStore(sys.argv[2], 2)
    device = torch.device("sim", rank)
    dist.init_process_group("simccl", store=store, rank=rank, world_size=2, device_id=device)
    steps, model = loop(BATCH, lambda data: DistributedSampler(data, shuffle=True), fully_shard)
    assert isinstance(next(model.parameters()), DTensor)
    dist.barrier()
    dist.destroy_process_group()
    return steps


if sys.argv[1] == "hand":
    child = os.fork()
    steps = by_hand(rank=int(child == 0))
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    print(json.dumps(steps))
else:
    accelerator.load(devices=2)
    with session(strategy="fsdp", devices=2, launch="fork") as s:
        steps, _ = loop(BATCH)
        s.print(json.dumps(steps))
